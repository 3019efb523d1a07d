// Offsets computed in advance: request i gets offset i of a plan.
//
// A request is served whenever the sum of live blocks allows it, so a policy decides as in the run
// that was recorded for the plan. Without a plan, the allocator serves for that recording: it
// stitches pages of one granule.
//
// A run with a plan may deviate from the recorded run: a request may not be in the plan, or its
// place may be taken. From then on blocks are placed by best fit among the live blocks, and no
// block moves. The plan is resumed at the beginning of its repeated part, when the number of live
// blocks is the recorded one.

#ifndef SPILLWAY_SIM_ALLOC_PLANNED_H_
#define SPILLWAY_SIM_ALLOC_PLANNED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sim/alloc/stitched.h"
#include "sim/core/replayable_allocator.h"
#include "sim/packing/allocation_log.h"
#include "sim/packing/packing.h"

namespace spillway::sim {

struct AllocationPlan {
  // Entry i belongs to request i. After the last request, the requests from `repeat` on come again,
  // as in a steady iteration.
  std::vector<Bytes> sizes;
  std::vector<Bytes> offsets;
  std::vector<size_t> live;  // number of live blocks before the request
  size_t repeat = 0;         // equal to the number of requests if no part repeats
  Bytes memory;              // limit for the sum of live blocks
  Bytes height;              // end of the highest block
  Bytes bound;               // largest sum of live blocks; no plan is lower
};

// Returns packings of the intervals for `Pack`: where best fit, first fit, CNMeM's and PyTorch's
// allocator place them as they come, in unlimited memory. PyTorch's allocator is left out if its
// unit, 512 bytes, is not a multiple of the granularity.
std::vector<std::vector<Bytes>> OnlinePlacements(std::span<const LiveInterval> intervals,
                                                 Bytes granularity);

// Makes a plan for the log of a whole run in which up to `memory` bytes may be live. `period` is
// the number of requests of one steady iteration. The repeated part begins at the earliest
// iteration from which all requests and their lifetimes repeat.
AllocationPlan PlanAllocations(const AllocationLog& log, size_t period, Bytes memory,
                               const PackingOptions& options);

class Planned final : public ReplayableAllocator {
 public:
  // Makes an allocator that records (with `capacity`), or one that follows a plan. REQUIRES:
  // granularity > 0.
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

  // Returns the number of the plan's request that comes next; the number of requests if the plan
  // has none.
  size_t NextRequest() const;

  // A range of free bytes in [0, the end of the memory that the plan may use).
  struct Gap {
    Bytes offset, size;
  };
  // Returns the smallest gap of at least `size` bytes, of equal sizes the lowest; the largest gap
  // if none is large enough.
  Gap BestGap(Bytes size) const;
  bool IsFree(Bytes offset, Bytes size) const;

  const Bytes granularity_;
  const std::unique_ptr<Stitched> recording_;  // null if there is a plan
  const std::shared_ptr<const AllocationPlan> plan_;
  size_t next_ = 0;             // number of the next request
  bool deviates_ = false;       // the last request was not placed by the plan
  std::map<Bytes, Live> live_;  // by offset
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_PLANNED_H_
