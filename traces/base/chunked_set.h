// A sorted set of small trivially copyable entries that offers the operations of a balanced tree in
// contiguous memory.
//
// Entries lie sorted in chunks of at most `kCapacity`. A lookup first searches a separate array
// that holds the last entry of each chunk, then one chunk. An insertion moves the entries of at
// most one chunk. The set is efficient up to millions of entries. `Insert` and `Erase` invalidate
// positions. A set with a `Weight` also keeps the largest weight of each chunk, so a search for the
// first or last entry that weighs enough skips whole chunks.

#ifndef SPILLWAY_TRACES_BASE_CHUNKED_SET_H_
#define SPILLWAY_TRACES_BASE_CHUNKED_SET_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::traces {

// The weight of entries that are never searched by weight.
struct NoWeight {
  template <typename Entry>
  int operator()(const Entry&) const {
    return 0;
  }
};

template <typename Entry, typename Less = std::less<Entry>, typename Weight = NoWeight>
class ChunkedSet {
  static_assert(std::is_trivially_copyable_v<Entry>);
  static constexpr bool kWeighs = !std::is_same_v<Weight, NoWeight>;

 public:
  using WeightValue = std::invoke_result_t<Weight, const Entry&>;

  // The place of an entry. The position after the last entry is `End`.
  struct Position {
    size_t chunk = 0;
    uint32_t index = 0;
    bool operator==(const Position&) const = default;
  };

  bool empty() const { return chunks_.empty(); }
  Position Begin() const { return {0, 0}; }
  Position End() const { return {chunks_.size(), 0}; }

  // Returns the first entry that is not less than `key`, or `End` if there is none.
  Position LowerBound(const Entry& key) const {
    const size_t chunk = CountLess(last_.data(), last_.size(), key);
    if (chunk == last_.size()) return End();
    const Chunk& entries = *chunks_[chunk];
    return {chunk, static_cast<uint32_t>(CountLess(entries.entries.data(), entries.count, key))};
  }

  // REQUIRES: `position` is not `End`. For `Previous`, it is not `Begin`.
  const Entry& At(Position position) const {
    return chunks_[position.chunk]->entries[position.index];
  }
  Position Next(Position position) const {
    if (position.index + 1 < chunks_[position.chunk]->count) {
      return {position.chunk, position.index + 1};
    }
    return {position.chunk + 1, 0};
  }
  Position Previous(Position position) const {
    if (position.index > 0) return {position.chunk, position.index - 1};
    return {position.chunk - 1, chunks_[position.chunk - 1]->count - 1};
  }
  const Entry& Last() const { return last_.back(); }

  // Return the first or the last entry with at least this weight, or `End` if there is none.
  Position FirstAtLeast(const WeightValue& weight) const {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      if (largest_[chunk] < weight) continue;
      const Entry* entry = chunks_[chunk]->entries.data();
      while (Weight()(*entry) < weight) ++entry;
      return {chunk, IndexOf(chunk, entry)};
    }
    return End();
  }
  Position LastAtLeast(const WeightValue& weight) const {
    for (size_t chunk = chunks_.size(); chunk-- > 0;) {
      if (largest_[chunk] < weight) continue;
      const Entry* entry = chunks_[chunk]->entries.data() + chunks_[chunk]->count - 1;
      while (Weight()(*entry) < weight) --entry;
      return {chunk, IndexOf(chunk, entry)};
    }
    return End();
  }
  // Returns the largest weight, or a value-initialised one if the set is empty.
  WeightValue Largest() const {
    return empty() ? WeightValue() : *std::max_element(largest_.begin(), largest_.end());
  }

  // REQUIRES: no equal entry is in the set.
  void Insert(const Entry& entry) {
    if (chunks_.empty()) {
      chunks_.push_back(NewChunk());
      last_.push_back(entry);
      if constexpr (kWeighs) largest_.push_back(Weight()(entry));
    }
    size_t chunk = std::min(CountLess(last_.data(), last_.size(), entry), last_.size() - 1);
    if (chunks_[chunk]->count == kCapacity) {
      Split(chunk);
      if (Less()(last_[chunk], entry)) ++chunk;
    }
    Chunk& target = *chunks_[chunk];
    Entry* const begin = target.entries.data();
    Entry* const end = begin + target.count;
    Entry* const place = begin + CountLess(begin, target.count, entry);
    std::copy_backward(place, end, end + 1);
    *place = entry;
    ++target.count;
    last_[chunk] = target.entries[target.count - 1];
    if constexpr (kWeighs) largest_[chunk] = std::max(largest_[chunk], Weight()(entry));
  }

  void Erase(Position position) {
    Chunk& target = *chunks_[position.chunk];
    Entry* const begin = target.entries.data();
    const WeightValue weight = Weight()(begin[position.index]);
    std::copy(begin + position.index + 1, begin + target.count, begin + position.index);
    if (--target.count == 0) {
      spare_ = std::move(chunks_[position.chunk]);
      chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(position.chunk));
      last_.erase(last_.begin() + static_cast<std::ptrdiff_t>(position.chunk));
      if constexpr (kWeighs) {
        largest_.erase(largest_.begin() + static_cast<std::ptrdiff_t>(position.chunk));
      }
    } else {
      last_[position.chunk] = target.entries[target.count - 1];
      if constexpr (kWeighs) {
        if (weight == largest_[position.chunk]) largest_[position.chunk] = HeaviestOf(target);
      }
    }
  }
  // REQUIRES: the set has an entry that is equivalent to `key` under `Less`.
  void Erase(const Entry& key) { Erase(LowerBound(key)); }

  // REQUIRES: `replacement` sorts into the place of the entry at `position`.
  void Replace(Position position, const Entry& replacement) {
    Chunk& target = *chunks_[position.chunk];
    const WeightValue weight = Weight()(target.entries[position.index]);
    target.entries[position.index] = replacement;
    last_[position.chunk] = target.entries[target.count - 1];
    if constexpr (kWeighs) {
      WeightValue& largest = largest_[position.chunk];
      const bool was_largest = weight == largest;
      largest = was_largest ? HeaviestOf(target) : std::max(largest, Weight()(replacement));
    }
  }

  // REQUIRES: the set has an entry equivalent to `key`, and `replacement` sorts into its place.
  void Replace(const Entry& key, const Entry& replacement) {
    Replace(LowerBound(key), replacement);
  }

  void Clear() {
    chunks_.clear();
    last_.clear();
    if constexpr (kWeighs) largest_.clear();
  }

 private:
  static constexpr uint32_t kCapacity = 32;

  struct Chunk {
    uint32_t count = 0;
    std::array<Entry, kCapacity> entries;
  };

  std::unique_ptr<Chunk> NewChunk() {
    return spare_ ? std::move(spare_) : std::make_unique<Chunk>();
  }

  uint32_t IndexOf(size_t chunk, const Entry* entry) const {
    return static_cast<uint32_t>(entry - chunks_[chunk]->entries.data());
  }
  static WeightValue HeaviestOf(const Chunk& chunk) {
    WeightValue heaviest = Weight()(chunk.entries[0]);
    for (uint32_t i = 1; i < chunk.count; ++i) {
      heaviest = std::max(heaviest, Weight()(chunk.entries[i]));
    }
    return heaviest;
  }

  // Returns how many of the sorted entries are less than `key`. The loop has no branch to
  // mispredict: the comparison with `key` only decides how far `base` moves.
  static size_t CountLess(const Entry* entries, size_t count, const Entry& key) {
    const Entry* base = entries;
    while (count > 1) {
      const size_t half = count / 2;
      base += Less()(base[half - 1], key) ? half : 0;
      count -= half;
    }
    return static_cast<size_t>(base - entries) + (count == 1 && Less()(*base, key) ? 1 : 0);
  }

  // Moves the upper half of a full chunk into a new chunk after it.
  void Split(size_t chunk) {
    auto upper = NewChunk();
    Chunk& lower = *chunks_[chunk];
    constexpr uint32_t kHalf = kCapacity / 2;
    std::copy(lower.entries.begin() + kHalf, lower.entries.end(), upper->entries.begin());
    upper->count = kCapacity - kHalf;
    lower.count = kHalf;
    const auto after = static_cast<std::ptrdiff_t>(chunk) + 1;
    last_.insert(last_.begin() + after, last_[chunk]);
    last_[chunk] = lower.entries[kHalf - 1];
    if constexpr (kWeighs) {
      largest_.insert(largest_.begin() + after, HeaviestOf(*upper));
      largest_[chunk] = HeaviestOf(lower);
    }
    chunks_.insert(chunks_.begin() + after, std::move(upper));
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;  // no chunk is empty
  std::vector<Entry> last_;                     // the last entry of each chunk
  std::unique_ptr<Chunk>
      spare_;  // an emptied chunk, reused so that a nearly empty set does not allocate often
  struct Nothing {};
  // The largest weight in each chunk.
  [[no_unique_address]] std::conditional_t<kWeighs, std::vector<WeightValue>, Nothing> largest_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_CHUNKED_SET_H_
