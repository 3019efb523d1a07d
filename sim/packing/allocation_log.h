// What a run asked of its allocator, in order: the requests without their answers.
//
// It is what a fragmentation study replays on other allocators and other capacities: the requests
// of a policy whose decisions do not depend on where blocks lie.

#ifndef SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_
#define SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_

#include <functional>
#include <optional>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/report.h"
#include "sim/packing/packing.h"

namespace spillway {

// A request for a block, or its end. Blocks are numbered from 0 in the order of their requests.
struct AllocationStep {
  uint32_t block = 0;
  bool free = false;
  Bytes size;              // as requested
  Hint hint = Hint::kLow;  // of a request
  bool operator==(const AllocationStep&) const = default;
};

class AllocationLog {
 public:
  // Returns the number of the new block.
  uint32_t Allocate(Bytes size, Hint hint = Hint::kLow);
  // REQUIRES: the block is live.
  void Free(uint32_t block);

  const std::vector<AllocationStep>& steps() const { return steps_; }
  uint32_t blocks() const { return static_cast<uint32_t>(sizes_.size()); }

  // The largest sum of live bytes, each block rounded up to the granularity: what no allocator of
  // that granularity can do without.
  Bytes Peak(Bytes granularity) const;

 private:
  std::vector<AllocationStep> steps_;
  std::vector<Bytes> sizes_;  // by block
};

// The device requests of the iteration that a report describes, beginning with what is held from
// before. `counted` says which of them lie in the pool; nullptr for all. What is still held in the
// end stays so.
AllocationLog RequestsOf(const Report& report,
                         const std::function<bool(const Placement&)>& counted = nullptr);

// The lifetime of each block of a log, in its steps; what is not given back lives to the end.
std::vector<LiveInterval> IntervalsOf(const AllocationLog& log);

// The request that an allocator could not serve.
struct ReplayFailure {
  size_t step = 0;
  Bytes wanted;
  Bytes largest_free;  // the largest request of the same hint that would have succeeded
};

// Plays the log on an allocator that holds nothing; nullopt if every request is served. In the end,
// and after a failure, what is live stays in the allocator.
std::optional<ReplayFailure> Replay(const AllocationLog& log, Allocator& allocator);

}  // namespace spillway

#endif  // SPILLWAY_SIM_PACKING_ALLOCATION_LOG_H_
