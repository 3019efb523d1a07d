// Best fit over one arena: the smallest free block that suffices, ties to the lowest offset.
//
// Requests are rounded up to a granularity; freed blocks merge with free neighbours at once. The
// block is cut from the low or the high end of the chosen free block, as the hint says. `reserved`
// is the high-water mark: the end of the highest block ever handed out. The arena is a list of
// chunks in address order, whose numbers blocks carry as their handles; the free ones are also in
// bins by size. Every operation takes a few look-ups in contiguous memory.

#ifndef SPILLWAY_SIM_ALLOC_BEST_FIT_H_
#define SPILLWAY_SIM_ALLOC_BEST_FIT_H_

#include <cstdint>

#include "sim/alloc/pool/chunk_list.h"
#include "sim/alloc/pool/size_bins.h"
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
  Bytes Reserved() const override { return reserved_; }

 private:
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);

  const Bytes granularity_;
  ChunkList chunks_;
  SizeBins free_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_BEST_FIT_H_
