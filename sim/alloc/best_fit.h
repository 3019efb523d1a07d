// Best fit over one arena: the smallest free block that suffices, ties to the lowest offset.
//
// Requests are rounded up to a granularity; freed blocks merge with free neighbours at once. The
// block is cut from the low or the high end of the chosen free block, as the hint says. `reserved`
// is the high-water mark: the end of the highest block ever handed out. Logarithmic in the free
// blocks.

#ifndef SPILLWAY_SIM_ALLOC_BEST_FIT_H_
#define SPILLWAY_SIM_ALLOC_BEST_FIT_H_

#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "sim/core/allocator.h"

namespace spillway {

class BestFit final : public Allocator {
 public:
  // REQUIRES: granularity > 0. The arena holds `capacity` rounded down to the granularity.
  BestFit(Bytes capacity, Bytes granularity);

  std::string_view Name() const override { return "best-fit"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;

 private:
  void AddFree(Bytes offset, Bytes size);
  void RemoveFree(std::map<Bytes, Bytes>::iterator block);

  const Bytes granularity_;
  std::map<Bytes, Bytes> free_;                     // offset to size
  std::set<std::pair<Bytes, Bytes>> free_by_size_;  // (size, offset)
  std::unordered_map<int64_t, Bytes> live_;         // offset of a live block to its requested size
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_BEST_FIT_H_
