// An allocator that a recorded log of allocations can be replayed on: besides blocks, a log has
// streams, emptied caches, and segments that were held before it begins.
//
// No run of a policy asks for these. The defaults are for allocators that know none of them.

#ifndef SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_
#define SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_

#include <optional>
#include <vector>

#include "sim/core/allocator.h"

namespace spillway {

// A segment of the driver's that an allocator holds before the first request, with the live blocks
// in it by offset, which do not overlap. Of an expandable one, pages next to each other that have
// memory; segments of one range of addresses are taken over in ascending order, and the first
// begins where the range does, if need be with no bytes.
struct HeldSegment {
  struct Held {
    Bytes offset;  // in the segment
    Bytes requested;
    Bytes taken;  // with what could not be split off behind it; 0 if that is not known
  };

  Bytes address;  // the driver's
  Bytes size;
  uint64_t stream = 0;
  bool small = false;  // it serves small requests, where an allocator tells them apart
  bool expandable = false;
  std::vector<Held> blocks;
};

class ReplayableAllocator : public Allocator {
 public:
  // Says which stream the requests from now on are for; at first it is 0. What one stream has given
  // back serves no other where an allocator caches per stream; others ignore it.
  virtual void UseStream(uint64_t /*stream*/) {}

  // Gives cached memory that holds no block back to the driver, as `torch.cuda.empty_cache()` does.
  virtual void EmptyCache() {}

  // Says what the driver gave the recorded allocator, in order: a new segment of that size lies
  // there. Others have addresses that are made up, above those recorded.
  virtual void ExpectSegment(const Block& /*range*/) {}

  // Gives back what the recorded allocator gave back: the segment, or the pages mapped there. False
  // if something in it is live or it is not there.
  virtual bool GiveBack(const Block& /*range*/) { return false; }

  // Takes a segment over as it is and returns its blocks in order; nullopt if there is no memory
  // for it, in which case blocks that were placed stay. Allocators that have no segments allocate
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

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_REPLAYABLE_ALLOCATOR_H_
