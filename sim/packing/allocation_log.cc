#include "sim/packing/allocation_log.h"

#include <algorithm>
#include <map>

#include "traces/base/error.h"

namespace spillway::sim {

uint32_t AllocationLog::Allocate(Bytes size, Hint hint, uint64_t stream) {
  const auto block = static_cast<uint32_t>(sizes_.size());
  sizes_.push_back(size);
  steps_.push_back({block, false, size, hint, stream});
  return block;
}

void AllocationLog::Free(uint32_t block) {
  SPILLWAY_CHECK(block < sizes_.size());
  steps_.push_back({block, true, sizes_[block], Hint::kLow});
}

Bytes AllocationLog::Peak(Bytes granularity) const {
  Bytes live, peak;
  for (const AllocationStep& step : steps_) {
    const Bytes rounded = RoundUp(std::max(step.size, Bytes(1)), granularity);
    live = step.free ? live - rounded : live + rounded;
    peak = std::max(peak, live);
  }
  return peak;
}

AllocationLog RequestsOf(const Report& report,
                         const std::function<bool(const Placement&)>& counted) {
  AllocationLog log;
  std::map<Bytes, uint32_t> live;  // by offset
  for (const Placement& placement : report.placements) {
    if (!placement.on_device() || (counted && !counted(placement))) continue;
    if (placement.kind == PlacementKind::kAllocate) {
      live[placement.block.offset] = log.Allocate(placement.requested, placement.hint);
    } else if (placement.kind == PlacementKind::kFree) {
      const auto found = live.find(placement.block.offset);
      SPILLWAY_CHECK(found != live.end());
      log.Free(found->second);
      live.erase(found);
    }
  }
  return log;
}

std::vector<LiveInterval> IntervalsOf(const AllocationLog& log) {
  const auto last = static_cast<int64_t>(log.steps().size());
  std::vector<LiveInterval> intervals(log.blocks());
  for (int64_t i = 0; i < last; ++i) {
    const AllocationStep& step = log.steps()[static_cast<size_t>(i)];
    if (step.free) {
      intervals[step.block].end = i;
    } else {
      intervals[step.block] = {i, last, step.size};
    }
  }
  return intervals;
}

std::optional<ReplayFailure> Replay(const AllocationLog& log, Allocator& allocator) {
  std::vector<Block> blocks(log.blocks());
  for (size_t i = 0; i < log.steps().size(); ++i) {
    const AllocationStep& step = log.steps()[i];
    if (step.free) {
      allocator.Free(blocks[step.block]);
      continue;
    }
    allocator.UseStream(step.stream);
    const auto block = allocator.Allocate(step.size, step.hint);
    if (!block) return ReplayFailure{i, step.size, allocator.LargestFree(step.hint)};
    blocks[step.block] = *block;
  }
  return std::nullopt;
}

}  // namespace spillway::sim
