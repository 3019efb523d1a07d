// The requests of a run to its allocator, in order, without the answers.
//
// A fragmentation study replays the log on other allocators and capacities. The log must come from
// a policy whose decisions do not depend on the offsets of blocks.

#ifndef SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_
#define SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_

#include <functional>
#include <optional>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/report.h"
#include "sim/packing/packing.h"

namespace spillway::sim {

// The request for a block, or its end. Blocks are numbered from 0 in the order of their requests.
struct AllocationStep {
  uint32_t block = 0;
  bool free = false;
  Bytes size;              // as requested
  Hint hint = Hint::kLow;  // for requests only
  uint64_t stream = 0;  // from whose pool it is, where an allocator has several; for requests only
  bool operator==(const AllocationStep&) const = default;
};

class AllocationLog {
 public:
  // Returns the number of the new block.
  uint32_t Allocate(Bytes size, Hint hint = Hint::kLow, uint64_t stream = 0);
  // REQUIRES: the block is live.
  void Free(uint32_t block);

  const std::vector<AllocationStep>& steps() const { return steps_; }
  uint32_t blocks() const { return static_cast<uint32_t>(sizes_.size()); }

  // Returns the largest sum of live bytes, with each block rounded up to the granularity. No
  // allocator of this granularity can need less.
  Bytes Peak(Bytes granularity) const;

 private:
  std::vector<AllocationStep> steps_;
  std::vector<Bytes> sizes_;  // by block
};

// Returns the device requests of the iteration that a report describes, beginning with the blocks
// that are already held. Only placements for which `counted` returns true are included; nullptr
// includes all. Blocks that are held at the end have no `Free` step.
AllocationLog RequestsOf(const Report& report,
                         const std::function<bool(const Placement&)>& counted = nullptr);

// Returns the lifetime of each block of a log, in steps. A block without a `Free` step lives to the
// end.
std::vector<LiveInterval> IntervalsOf(const AllocationLog& log);

// The request that an allocator could not serve.
struct ReplayFailure {
  size_t step = 0;
  Bytes wanted;
  Bytes largest_free;  // the largest request of the same hint that would have succeeded
};

// Replays the log on an allocator that holds nothing. Returns nullopt if every request is served.
// Afterwards, or after a failure, live blocks stay in the allocator.
std::optional<ReplayFailure> Replay(const AllocationLog& log, Allocator& allocator);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_
