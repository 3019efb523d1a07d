// A hash table from the offset of a block to a small number: open addressing, no tombstones.
//
// For allocators, which must find a block's record when it is given back. Never iterated, so
// hashing does not touch determinism.

#ifndef SPILLWAY_SIM_ALLOC_OFFSET_TABLE_H_
#define SPILLWAY_SIM_ALLOC_OFFSET_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/error.h"

namespace spillway {

class OffsetTable {
 public:
  OffsetTable() : slots_(kInitialSlots) {}

  size_t size() const { return size_; }

  // REQUIRES: offset >= 0 and not in the table.
  void Insert(int64_t offset, uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    size_t slot = Home(offset);
    while (slots_[slot].offset != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {offset, value};
    ++size_;
  }

  // Removes the offset and returns its value. Aborts if it is not there: a block was given back
  // twice.
  uint32_t Take(int64_t offset) {
    const size_t mask = slots_.size() - 1;
    size_t slot = Home(offset);
    while (slots_[slot].offset != offset) {
      SPILLWAY_CHECK(slots_[slot].offset != kEmpty);
      slot = (slot + 1) & mask;
    }
    const uint32_t value = slots_[slot].value;
    --size_;
    // Entries behind the gap move up where that brings them closer to their home.
    for (size_t next = (slot + 1) & mask; slots_[next].offset != kEmpty; next = (next + 1) & mask) {
      const size_t home = Home(slots_[next].offset);
      if (((next - home) & mask) < ((next - slot) & mask)) continue;
      slots_[slot] = slots_[next];
      slot = next;
    }
    slots_[slot].offset = kEmpty;
    return value;
  }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr size_t kInitialSlots = 64;  // a power of two, as ever after

  struct Slot {
    int64_t offset = kEmpty;
    uint32_t value = 0;
  };

  // Fibonacci hashing: the upper bits of the product are well mixed.
  size_t Home(int64_t offset) const {
    const uint64_t mixed = static_cast<uint64_t>(offset) * 0x9e3779b97f4a7c15ull;
    return static_cast<size_t>(mixed >> 20) & (slots_.size() - 1);
  }

  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.offset != kEmpty) Insert(slot.offset, slot.value);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_OFFSET_TABLE_H_
