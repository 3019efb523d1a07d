// CNMeM: best fit in a pool that grows by segments of exactly the size that failed.
//
// The pool begins with one segment; a request that no free block can serve gets a segment of its
// own by cudaMalloc, as long as the device has memory. Segments never merge and are never given
// back, so that growth itself fragments the pool (vDNN++, section III-B). `reserved` is the sum of
// the segments.

#ifndef SPILLWAY_SIM_ALLOC_CNMEM_H_
#define SPILLWAY_SIM_ALLOC_CNMEM_H_

#include <vector>

#include "sim/alloc/pool/chunk_list.h"
#include "sim/alloc/pool/size_bins.h"
#include "sim/core/allocator.h"

namespace spillway {

class Cnmem final : public Allocator {
 public:
  // `initial` bytes, rounded up to the granularity, are the first segment, or the whole capacity if
  // that is less. REQUIRES: granularity > 0, initial >= 0.
  Cnmem(Bytes capacity, Bytes granularity, Bytes initial);

  std::string_view Name() const override { return "cnmem"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }
  std::span<const DriverCall> driver_calls() const override { return calls_; }

 private:
  // A free chunk that suffices, by growth; kNone if the device has not that much left.
  uint32_t Grow(Bytes rounded);
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);

  const Bytes capacity_;  // a multiple of the granularity
  const Bytes granularity_;
  ChunkList chunks_;
  SizeBins free_;
  std::vector<DriverCall> calls_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_CNMEM_H_
