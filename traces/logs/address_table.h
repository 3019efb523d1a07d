// A hash table from addresses to small values, whose size grows with the number of live addresses.
//
// Uses open addressing with linear probing. Erasing moves later entries back, so a table that lives
// through millions of events does not fill up with tombstones. The table cannot be iterated over.

#ifndef SPILLWAY_TRACES_LOGS_ADDRESS_TABLE_H_
#define SPILLWAY_TRACES_LOGS_ADDRESS_TABLE_H_

#include <cstdint>
#include <vector>

namespace spillway::traces {

template <typename Value>
class AddressTable {
 public:
  AddressTable() : entries_(64) {}

  size_t size() const { return size_; }

  // Returns a pointer to the value of an address, or nullptr. The pointer is valid until the table
  // changes.
  Value* Find(uint64_t address) {
    for (size_t at = Home(address);; at = Next(at)) {
      if (!entries_[at].used) return nullptr;
      if (entries_[at].address == address) return &entries_[at].value;
    }
  }

  // Adds an address. If the table already has it, returns false and changes nothing.
  bool Insert(uint64_t address, const Value& value) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    size_t at = Home(address);
    for (; entries_[at].used; at = Next(at)) {
      if (entries_[at].address == address) return false;
    }
    entries_[at] = {address, value, true};
    ++size_;
    return true;
  }

  // REQUIRES: the table has the address.
  void Erase(uint64_t address) {
    size_t hole = Home(address);
    while (entries_[hole].address != address || !entries_[hole].used) hole = Next(hole);
    for (size_t at = Next(hole); entries_[at].used; at = Next(at)) {
      // An entry may move into the hole unless its home is between the hole and the entry.
      const size_t distance = (at - Home(entries_[at].address)) & (entries_.size() - 1);
      if (distance >= ((at - hole) & (entries_.size() - 1))) {
        entries_[hole] = entries_[at];
        hole = at;
      }
    }
    entries_[hole].used = false;
    --size_;
  }

 private:
  struct Entry {
    uint64_t address = 0;
    Value value{};
    bool used = false;
  };

  size_t Next(size_t at) const { return (at + 1) & (entries_.size() - 1); }
  size_t Home(uint64_t address) const {
    // Addresses are multiples of 512. The high bits of a product with an odd number spread them.
    return static_cast<size_t>((address * 0x9e3779b97f4a7c15u) >> 32) & (entries_.size() - 1);
  }
  void Grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (!entry.used) continue;
      size_t at = Home(entry.address);
      while (entries_[at].used) at = Next(at);
      entries_[at] = entry;
    }
  }

  std::vector<Entry> entries_;
  size_t size_ = 0;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_ADDRESS_TABLE_H_
