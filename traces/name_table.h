// A hash table from names to indices: open addressing, for the hundreds of thousands of names of a
// trace.
//
// Names are views; what they look at outlives the table. Never iterated.

#ifndef SPILLWAY_TRACES_NAME_TABLE_H_
#define SPILLWAY_TRACES_NAME_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace spillway {

class NameTable {
 public:
  // The index of a name, or nullptr.
  const uint32_t* Find(std::string_view name) const {
    const Slot& slot = slots_[Locate(name, std::hash<std::string_view>()(name))];
    return slot.used ? &slot.index : nullptr;
  }

  // False, and nothing has changed, if the name is there already.
  bool Insert(std::string_view name, uint32_t index) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    const size_t hash = std::hash<std::string_view>()(name);
    Slot& slot = slots_[Locate(name, hash)];
    if (slot.used) return false;
    slot = {name, static_cast<uint32_t>(hash >> 32), index, true};
    ++size_;
    return true;
  }

  void Clear() {
    slots_.assign(slots_.size(), Slot());
    size_ = 0;
  }

 private:
  static constexpr size_t kInitialSlots = 64;  // a power of two, as ever after

  struct Slot {
    std::string_view name;
    uint32_t tag = 0;  // upper half of the hash: spares most comparisons of names
    uint32_t index = 0;
    bool used = false;
  };

  // The slot that holds the name, or the one where it would go.
  size_t Locate(std::string_view name, size_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    while (slots_[slot].used &&
           (slots_[slot].tag != static_cast<uint32_t>(hash >> 32) || slots_[slot].name != name)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.used) Insert(slot.name, slot.index);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kInitialSlots);
  size_t size_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_NAME_TABLE_H_
