// vDNN++'s heuristic against fragmentation (section IV-B): requests with a high hint come from the
// top of the arena, all others from the low end of the best fit.
//
// Which tensors get the high hint is the policy's business; where the top is has two readings. The
// paper's text: "the highest available address", so the highest free block that suffices. The
// authors' code: the last free block in address order; if that one is too small the request fails,
// even where another would do. Granularity, merging and `reserved` are best fit's.

#ifndef SPILLWAY_SIM_ALLOC_HIGH_END_H_
#define SPILLWAY_SIM_ALLOC_HIGH_END_H_

#include <cstdint>

#include "sim/alloc/pool/address_order.h"
#include "sim/alloc/pool/chunk_list.h"
#include "sim/alloc/pool/size_bins.h"
#include "sim/core/allocator.h"

namespace spillway {

class HighEnd final : public Allocator {
 public:
  enum class Reading : uint8_t { kCode, kText };

  // REQUIRES: granularity > 0. The arena holds `capacity` rounded down to the granularity.
  HighEnd(Bytes capacity, Bytes granularity, Reading reading);

  std::string_view Name() const override { return "high-end"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes LargestFree(Hint hint) const override;
  Bytes Reserved() const override { return reserved_; }

 private:
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);
  // The free chunk that a request takes, or kNone.
  uint32_t Choose(Bytes rounded, Hint hint) const;

  const Bytes granularity_;
  const Reading reading_;
  ChunkList chunks_;
  SizeBins by_size_;
  AddressOrder by_address_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_HIGH_END_H_
