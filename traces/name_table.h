// A hash table that numbers names, with open addressing, made for the hundreds of thousands of
// names of a trace.
//
// Names are views; the text that they view outlives the table. The table holds fewer than 2^32
// names. It is never iterated.

#ifndef SPILLWAY_TRACES_NAME_TABLE_H_
#define SPILLWAY_TRACES_NAME_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace spillway::traces {

class NameTable {
 public:
  // Returns a pointer to the index of a name, or nullptr if the table does not have it.
  const uint32_t* Find(std::string_view name) const {
    const Slot& slot = slots_[Locate(name, Hash(name))];
    return slot.index == kFree ? nullptr : &slot.index;
  }

  // Gives a name the next index, counted from 0. If the name has an index already, returns false
  // and changes nothing.
  bool Insert(std::string_view name) {
    if (2 * (names_.size() + 1) > slots_.size()) Grow();
    const uint32_t hash = Hash(name);
    Slot& slot = slots_[Locate(name, hash)];
    if (slot.index != kFree) return false;
    slot = {hash, static_cast<uint32_t>(names_.size())};
    names_.push_back(name);
    return true;
  }

  void Clear() {
    slots_.assign(slots_.size(), Slot());
    names_.clear();
  }

 private:
  static constexpr size_t kInitialSlots = 64;  // a power of two; growing doubles it
  static constexpr uint32_t kFree = 0xffffffff;

  // Slots are small and hold no names, because a large table is mostly cache misses. The hash
  // avoids most comparisons of names; growing compares no names.
  struct Slot {
    uint32_t hash = 0;
    uint32_t index = kFree;
  };

  static uint32_t Hash(std::string_view name) {
    return static_cast<uint32_t>(std::hash<std::string_view>()(name));
  }

  // Returns the slot that holds the name, or the free slot that would take it.
  size_t Locate(std::string_view name, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    while (slots_[slot].index != kFree &&
           (slots_[slot].hash != hash || names_[slots_[slot].index] != name)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    const size_t mask = slots_.size() - 1;
    for (const Slot& taken : old) {
      if (taken.index == kFree) continue;
      size_t slot = taken.hash & mask;
      while (slots_[slot].index != kFree) slot = (slot + 1) & mask;
      slots_[slot] = taken;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kInitialSlots);
  std::vector<std::string_view> names_;  // by index
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_NAME_TABLE_H_
