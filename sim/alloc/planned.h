// Offsets computed ahead of time: the i-th request gets the i-th offset of a plan.
//
// Whether a request is served depends on the sum of live blocks alone, so that a policy decides as
// it did in the run that was recorded for the plan. Without a plan the allocator is good for that
// recording: it stitches pages of one granule. A run with a plan may deviate from the recorded one:
// from a request that the plan does not have, or whose place is taken, blocks lie where they fit
// best among those that are live, and nothing moves. The plan is taken up again where its repeated
// part begins: when as many blocks are live as then, and not elsewhere.

#ifndef SPILLWAY_SIM_ALLOC_PLANNED_H_
#define SPILLWAY_SIM_ALLOC_PLANNED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/alloc/stitched.h"
#include "sim/core/replayable_allocator.h"
#include "sim/packing/allocation_log.h"
#include "sim/packing/packing.h"

namespace spillway {

struct AllocationPlan {
  // By request. After the last one come those from `repeat` on again: a steady iteration.
  std::vector<Bytes> sizes;
  std::vector<Bytes> offsets;
  std::vector<size_t> live;  // blocks that are live when it is made
  size_t repeat = 0;         // equal to the number of requests if nothing repeats
  Bytes memory;              // the live blocks may be that much together
  Bytes height;              // the end of the highest block
  Bytes bound;               // the largest sum of live blocks: no plan is lower
};

// Plans for a log of a whole run, in which `memory` may be live together. `period` is how many
// requests one steady iteration makes; the repetition begins where all later requests, and when
// they end, repeat.
AllocationPlan PlanAllocations(const AllocationLog& log, size_t period, Bytes memory,
                               const PackingOptions& options);

class Planned final : public ReplayableAllocator {
 public:
  // REQUIRES: granularity > 0.
  Planned(Bytes capacity, Bytes granularity);
  Planned(std::shared_ptr<const AllocationPlan> plan, Bytes granularity);

  std::string_view Name() const override { return "planned"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return recording_ ? recording_->Reserved() : reserved_; }
  std::span<const DriverCall> driver_calls() const override {
    return recording_ ? recording_->driver_calls() : std::span<const DriverCall>();
  }
  Backing backing() const override { return recording_ ? Backing::kPages : Backing::kArena; }

 private:
  struct Live {
    Bytes end;
    Bytes requested;
  };

  // Which request of the plan the next one is; their number if it is none of them.
  size_t NextRequest() const;

  // Free bytes in [0, the end of what the plan may use), by offset.
  struct Gap {
    Bytes offset, size;
  };
  // The smallest of at least that size, the lowest of equals; the largest if none is large enough.
  Gap BestGap(Bytes size) const;
  bool IsFree(Bytes offset, Bytes size) const;

  const Bytes granularity_;
  const std::unique_ptr<Stitched> recording_;  // null with a plan
  const std::shared_ptr<const AllocationPlan> plan_;
  size_t next_ = 0;             // request
  bool deviates_ = false;       // from the plan
  std::map<Bytes, Live> live_;  // by offset
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_PLANNED_H_
