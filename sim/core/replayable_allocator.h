// An allocator on which a recorded log of allocations can be replayed. In addition to blocks, a log
// contains streams, emptied caches, and segments that were held before the log begins.
//
// A run of a policy uses only the `Allocator` interface. The default implementations here are for
// allocators without streams, caches and segments.

#ifndef SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_
#define SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_

#include <optional>
#include <vector>

#include "sim/core/allocator.h"

namespace spillway::sim {

// A driver segment that an allocator holds before the first request, with its live blocks by
// offset; the blocks do not overlap. For an expandable segment, one `HeldSegment` is a run of
// adjacent pages that have memory. The runs of one address range are adopted in ascending order.
// The first run begins at the start of the address range and may be empty.
struct HeldSegment {
  struct Held {
    Bytes offset;  // in the segment
    Bytes requested;
    Bytes taken;  // size including a rest that could not be split off; 0 if unknown
  };

  Bytes address;  // the driver's address
  Bytes size;
  uint64_t stream = 0;
  bool small = false;  // serves small requests, if the allocator distinguishes them
  bool expandable = false;
  std::vector<Held> blocks;
};

class ReplayableAllocator : public Allocator {
 public:
  // Gives cached memory without blocks back to the driver, like `torch.cuda.empty_cache()`.
  virtual void EmptyCache() {}

  // Announces the next segment that the driver gave the recorded allocator. A new segment of this
  // size is placed at this address. Segments that are not announced get made-up addresses above the
  // recorded ones.
  virtual void ExpectSegment(const Block& /*range*/) {}

  // Gives back the segment, or the mapped pages, that the recorded allocator gave back. Returns
  // false if the range does not exist or contains a live block.
  virtual bool GiveBack(const Block& /*range*/) { return false; }

  // Adopts a segment as it is and returns its blocks in order. Returns nullopt if there is no
  // memory for it; blocks placed before the failure stay. An allocator without segments allocates
  // the blocks one by one.
  virtual std::optional<std::vector<Block>> Adopt(const HeldSegment& segment) {
    UseStream(segment.stream);
    std::vector<Block> blocks;
    for (const HeldSegment::Held& held : segment.blocks) {
      const auto block = Allocate(held.requested, Hint::kLow);
      if (!block) return std::nullopt;
      blocks.push_back(*block);
    }
    return blocks;
  }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_
