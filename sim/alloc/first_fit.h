// First fit over one arena: the lowest free block that suffices.
//
// Requests are rounded up to a granularity; freed blocks merge with free neighbours at once. The
// block is always cut from the low end: address order is all there is to it, and hints are ignored.
// `reserved` is the high-water mark. SuperNeurons' pool is of this kind (section 3.1: blocks of
// 1 KB).

#ifndef SPILLWAY_SIM_ALLOC_FIRST_FIT_H_
#define SPILLWAY_SIM_ALLOC_FIRST_FIT_H_

#include "sim/alloc/pool/address_order.h"
#include "sim/alloc/pool/chunk_list.h"
#include "sim/core/allocator.h"

namespace spillway {

class FirstFit final : public Allocator {
 public:
  // REQUIRES: granularity > 0. The arena holds `capacity` rounded down to the granularity.
  FirstFit(Bytes capacity, Bytes granularity);

  std::string_view Name() const override { return "first-fit"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }

 private:
  AddressOrder::Entry EntryOf(uint32_t chunk) const {
    return {chunks_[chunk].offset, chunks_[chunk].size, chunk};
  }

  const Bytes granularity_;
  ChunkList chunks_;
  AddressOrder free_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_FIRST_FIT_H_
