// CNMeM: best fit in a pool that grows by segments of exactly the size that failed.
//
// The pool begins with one segment. A request that no free block can serve gets a new segment by
// cudaMalloc, as long as the device has memory. Segments never merge and are never given back, so
// growth itself fragments the pool (vDNN++, section III-B). Hints are ignored. `reserved` is the
// sum of the segments.

#ifndef SPILLWAY_SIM_ALLOC_CNMEM_H_
#define SPILLWAY_SIM_ALLOC_CNMEM_H_

#include <algorithm>
#include <vector>

#include "sim/alloc/pool/chunk_arena.h"
#include "sim/alloc/pool/size_bins.h"

namespace spillway::sim {

class Cnmem final : public ChunkArena<SizeBins> {
 public:
  // The first segment has `initial` bytes, rounded up to the granularity, but at most the capacity.
  // REQUIRES: granularity > 0, initial >= 0.
  Cnmem(Bytes capacity, Bytes granularity, Bytes initial)
      : ChunkArena(std::min(RoundUp(initial, granularity), capacity), granularity),
        capacity_(RoundDown(capacity, granularity)) {
    SPILLWAY_CHECK(initial >= Bytes(0));
    reserved_ = std::min(RoundUp(initial, granularity), capacity_);
  }

  std::string_view Name() const override { return "cnmem"; }
  std::optional<Block> Allocate(Bytes size, Hint) override {
    return ChunkArena::Allocate(size, Hint::kLow);
  }
  MemoryStats Stats() const override {
    return {requested_, allocated_, reserved_, std::max(free_.Largest(), capacity_ - reserved_)};
  }
  std::span<const DriverCall> driver_calls() const override { return calls_; }

 private:
  uint32_t Grow(Bytes rounded) override {
    if (rounded > capacity_ - reserved_) return ChunkList::kNone;
    calls_.push_back({DriverCall::Kind::kMalloc, {reserved_, rounded}, std::nullopt});
    reserved_ += rounded;
    return chunks_.AddSegment(reserved_ - rounded, rounded);
  }

  const Bytes capacity_;  // a multiple of the granularity
  std::vector<DriverCall> calls_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_CNMEM_H_
