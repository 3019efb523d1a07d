// First fit in one arena: takes the lowest free block that is large enough.
//
// The block is always cut from the low end of the free block; hints are ignored. SuperNeurons' pool
// is of this kind (section 3.1: blocks of 1 KB).

#ifndef SPILLWAY_SIM_ALLOC_FIRST_FIT_H_
#define SPILLWAY_SIM_ALLOC_FIRST_FIT_H_

#include "sim/alloc/pool/chunk_arena.h"
#include "sim/alloc/pool/free_block.h"

namespace spillway::sim {

struct LowestFirst : AddressOrder {
  template <typename Cut>
  bool Take(Bytes size, Hint, const Cut& cut) {
    const Position at = FirstAtLeast(size);
    if (at == End()) return false;
    const auto rest = cut(At(at));
    rest ? Replace(at, *rest) : Erase(at);
    return true;
  }
};

class FirstFit final : public ChunkArena<LowestFirst> {
 public:
  using ChunkArena::ChunkArena;
  std::string_view Name() const override { return "first-fit"; }
  std::optional<Block> Allocate(Bytes size, Hint) override {
    return ChunkArena::Allocate(size, Hint::kLow);
  }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_FIRST_FIT_H_
