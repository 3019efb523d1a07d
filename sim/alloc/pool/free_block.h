// A free block of an arena, as stored in the indices in which allocators look for blocks.

#ifndef SPILLWAY_SIM_ALLOC_POOL_FREE_BLOCK_H_
#define SPILLWAY_SIM_ALLOC_POOL_FREE_BLOCK_H_

#include <cstdint>

#include "traces/base/chunked_set.h"
#include "traces/base/units.h"

namespace spillway::sim {

struct FreeBlock {
  Bytes offset;
  Bytes size;
  uint32_t chunk = 0;  // the owner's number of the block
};

struct LiesLower {
  bool operator()(const FreeBlock& a, const FreeBlock& b) const { return a.offset < b.offset; }
};
struct SizeOfBlock {
  Bytes operator()(const FreeBlock& block) const { return block.size; }
};
// Free blocks by address. Finds the lowest or the highest block that is large enough in a few
// steps.
using AddressOrder = ChunkedSet<FreeBlock, LiesLower, SizeOfBlock>;

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_POOL_FREE_BLOCK_H_
