// Free blocks by size. Finds the smallest block that is large enough, of equal sizes the one with
// the lowest offset, in a few steps.
//
// There are sixteen bins for each power of two, each sorted by size and offset. A bitmap shows
// which bins are not empty. Most bins hold a handful of blocks, so most steps touch one cache line;
// a bin with very many blocks is still a sorted set.

#ifndef SPILLWAY_SIM_ALLOC_POOL_SIZE_BINS_H_
#define SPILLWAY_SIM_ALLOC_POOL_SIZE_BINS_H_

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sim/alloc/pool/free_block.h"
#include "sim/core/allocator.h"
#include "traces/base/chunked_set.h"
#include "traces/base/error.h"
#include "traces/base/units.h"

namespace spillway::sim {

class SizeBins {
 public:
  void Insert(const FreeBlock& entry) {
    const size_t bin = BinOf(entry.size);
    if (bin >= bins_.size()) bins_.resize(bin + 1);
    bins_[bin].Insert(entry);
    filled_[bin / 64] |= uint64_t{1} << (bin % 64);
  }

  // REQUIRES: a block with this size and offset is present. The chunk number is ignored.
  void Erase(const FreeBlock& entry) {
    const size_t bin = BinOf(entry.size);
    EraseAt(bin, bins_[bin].LowerBound(entry));
  }

  void Replace(const FreeBlock& entry, const FreeBlock& by) {
    Erase(entry);
    Insert(by);
  }

  // Removes the best fit for `size` and inserts the rest that `cut` returns, if any. Returns false
  // if no block is large enough. Hints are ignored.
  template <typename Cut>
  bool Take(Bytes size, Hint, const Cut& cut) {
    const auto [bin, fit] = Find(size);
    if (bin == kBins) return false;
    if (const auto rest = cut(EraseAt(bin, fit))) Insert(*rest);
    return true;
  }
  // Returns the best fit for `size`, or nullopt if no block is large enough. Blocks of exactly this
  // size are considered only from `offset` on.
  std::optional<FreeBlock> BestFit(Bytes size, Bytes offset = Bytes(0)) const {
    const auto [bin, fit] = Find(size, offset);
    if (bin == kBins) return std::nullopt;
    return bins_[bin].At(fit);
  }

  // Returns the size of the largest block; 0 if there is none.
  Bytes Largest() const {
    for (size_t word = filled_.size(); word-- > 0;) {
      if (filled_[word] == 0) continue;
      return bins_[word * 64 + 63 - std::countl_zero(filled_[word])].Last().size;
    }
    return Bytes(0);
  }

 private:
  static constexpr size_t kBins = 1024;

  struct SmallerThenLower {
    bool operator()(const FreeBlock& a, const FreeBlock& b) const {
      // This comparison has no branch, because its result cannot be predicted.
      const int smaller = a.size < b.size, equal = a.size == b.size, lower = a.offset < b.offset;
      return (smaller | (equal & lower)) != 0;
    }
  };
  using Bin = ChunkedSet<FreeBlock, SmallerThenLower>;

  // Returns the bin of a size, which grows with the size: the exponent, then the four bits below
  // the leading bit.
  static size_t BinOf(Bytes size) {
    const auto value = static_cast<uint64_t>(size.count());
    if (value < 16) return static_cast<size_t>(value);
    const int exponent = 63 - std::countl_zero(value);
    return static_cast<size_t>(exponent - 3) * 16 + ((value >> (exponent - 4)) & 15);
  }

  // Returns the first bin from `bin` on that is not empty, or kBins.
  size_t NextFilled(size_t bin) const {
    for (size_t word = bin / 64; word < filled_.size(); ++word) {
      uint64_t bits = filled_[word];
      if (word == bin / 64) bits &= ~uint64_t{0} << (bin % 64);
      if (bits != 0) return word * 64 + static_cast<size_t>(std::countr_zero(bits));
    }
    return kBins;
  }

  // Returns the bin and the place of the best fit; the bin is kBins if no block is large enough.
  std::pair<size_t, Bin::Position> Find(Bytes size, Bytes offset = Bytes(0)) const {
    size_t bin = BinOf(size);
    if (bin < bins_.size()) {
      const auto fit = bins_[bin].LowerBound({offset, size});
      if (fit != bins_[bin].End()) return {bin, fit};
    }
    bin = NextFilled(bin + 1);
    return {bin, {}};
  }

  FreeBlock EraseAt(size_t bin, Bin::Position position) {
    const FreeBlock entry = bins_[bin].At(position);
    bins_[bin].Erase(position);
    if (bins_[bin].empty()) filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    return entry;
  }

  std::vector<Bin> bins_;
  std::array<uint64_t, kBins / 64> filled_{};
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_POOL_SIZE_BINS_H_
