// Free blocks by address: finds the lowest, or the highest, that suffices in a few steps.
//
// Blocks lie sorted by offset in runs of at most 32; separate arrays hold each run's last offset,
// by which a block is found, and its largest size, by which a request skips it.

#ifndef SPILLWAY_SIM_ALLOC_POOL_ADDRESS_ORDER_H_
#define SPILLWAY_SIM_ALLOC_POOL_ADDRESS_ORDER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "traces/base/error.h"
#include "traces/base/units.h"

namespace spillway {

class AddressOrder {
 public:
  struct Entry {
    Bytes offset;
    Bytes size;
    uint32_t chunk = 0;  // the caller's own number of the block
  };

  // REQUIRES: no entry has the same offset.
  void Insert(const Entry& entry) {
    if (runs_.empty()) {
      runs_.push_back(std::make_unique<Run>());
      last_.push_back(entry.offset);
      largest_.push_back(Bytes(0));
    }
    size_t at = std::min(RunOf(entry.offset), runs_.size() - 1);
    if (runs_[at]->count == kCapacity) {
      Split(at);
      if (last_[at] < entry.offset) ++at;
    }
    Run& run = *runs_[at];
    Entry* const end = run.entries.data() + run.count;
    Entry* const place = Find(run, entry.offset);
    std::copy_backward(place, end, end + 1);
    *place = entry;
    ++run.count;
    last_[at] = run.entries[run.count - 1].offset;
    largest_[at] = std::max(largest_[at], entry.size);
  }

  // REQUIRES: an entry has this offset.
  void Erase(Bytes offset) {
    const size_t at = RunOf(offset);
    SPILLWAY_CHECK(at < runs_.size());
    Run& run = *runs_[at];
    Entry* const place = Find(run, offset);
    const Bytes size = place->size;
    std::copy(place + 1, run.entries.data() + run.count, place);
    if (--run.count == 0) {
      const auto index = static_cast<std::ptrdiff_t>(at);
      runs_.erase(runs_.begin() + index);
      last_.erase(last_.begin() + index);
      largest_.erase(largest_.begin() + index);
      return;
    }
    last_[at] = run.entries[run.count - 1].offset;
    if (size == largest_[at]) largest_[at] = Largest(run);
  }

  // Gives the entry at `offset` new values that leave the order as it is.
  void Replace(Bytes offset, const Entry& entry) {
    const size_t at = RunOf(offset);
    SPILLWAY_CHECK(at < runs_.size());
    Run& run = *runs_[at];
    Entry* const place = Find(run, offset);
    const Bytes size = place->size;
    *place = entry;
    last_[at] = run.entries[run.count - 1].offset;
    if (entry.size >= largest_[at]) {
      largest_[at] = entry.size;
    } else if (size == largest_[at]) {
      largest_[at] = Largest(run);
    }
  }

  // The lowest entry of at least `size`.
  std::optional<Entry> Lowest(Bytes size) const {
    for (size_t at = 0; at < largest_.size(); ++at) {
      if (largest_[at] < size) continue;
      const Entry* entry = runs_[at]->entries.data();
      while (entry->size < size) ++entry;
      return *entry;
    }
    return std::nullopt;
  }

  // The highest entry of at least `size`.
  std::optional<Entry> Highest(Bytes size) const {
    for (size_t at = largest_.size(); at-- > 0;) {
      if (largest_[at] < size) continue;
      const Entry* entry = runs_[at]->entries.data() + runs_[at]->count - 1;
      while (entry->size < size) --entry;
      return *entry;
    }
    return std::nullopt;
  }

  // The lowest entry above `offset`.
  std::optional<Entry> After(Bytes offset) const {
    const size_t at = RunOf(offset + Bytes(1));
    if (at == runs_.size()) return std::nullopt;
    return *Find(*runs_[at], offset + Bytes(1));
  }

  // The size of the largest entry; 0 if there is none.
  Bytes Largest() const {
    return largest_.empty() ? Bytes(0) : *std::max_element(largest_.begin(), largest_.end());
  }

 private:
  static constexpr uint32_t kCapacity = 32;

  struct Run {
    uint32_t count = 0;
    std::array<Entry, kCapacity> entries;
  };

  // The first run that does not end below `offset`.
  size_t RunOf(Bytes offset) const {
    return static_cast<size_t>(std::lower_bound(last_.begin(), last_.end(), offset) -
                               last_.begin());
  }
  // The first entry of the run that is not below `offset`.
  static Entry* Find(Run& run, Bytes offset) {
    Entry* entry = run.entries.data();
    for (uint32_t i = 0; i < run.count; ++i) entry += run.entries[i].offset < offset ? 1 : 0;
    return entry;
  }
  static Bytes Largest(const Run& run) {
    Bytes largest;
    for (uint32_t i = 0; i < run.count; ++i) largest = std::max(largest, run.entries[i].size);
    return largest;
  }

  // Moves the upper half of a full run into a new one after it.
  void Split(size_t at) {
    constexpr uint32_t kHalf = kCapacity / 2;
    auto upper = std::make_unique<Run>();
    Run& lower = *runs_[at];
    std::copy(lower.entries.begin() + kHalf, lower.entries.end(), upper->entries.begin());
    upper->count = kCapacity - kHalf;
    lower.count = kHalf;
    const auto after = static_cast<std::ptrdiff_t>(at) + 1;
    last_.insert(last_.begin() + after, last_[at]);
    last_[at] = lower.entries[kHalf - 1].offset;
    largest_.insert(largest_.begin() + after, Largest(*upper));
    largest_[at] = Largest(lower);
    runs_.insert(runs_.begin() + after, std::move(upper));
  }

  std::vector<std::unique_ptr<Run>> runs_;  // none is empty
  std::vector<Bytes> last_;                 // the offset of each run's last entry
  std::vector<Bytes> largest_;              // the largest size in each run
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_POOL_ADDRESS_ORDER_H_
