// Best fit in one arena: takes the smallest free block that is large enough; of equal sizes, the
// block with the lowest offset.
//
// Free blocks are kept in bins by size. Every operation takes a few look-ups in contiguous memory.

#ifndef SPILLWAY_SIM_ALLOC_BEST_FIT_H_
#define SPILLWAY_SIM_ALLOC_BEST_FIT_H_

#include "sim/alloc/pool/chunk_arena.h"
#include "sim/alloc/pool/size_bins.h"

namespace spillway::sim {

class BestFit final : public ChunkArena<SizeBins> {
 public:
  using ChunkArena::ChunkArena;
  std::string_view Name() const override { return "best-fit"; }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_BEST_FIT_H_
