#include "sim/alloc/planned.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// A block in the order of requests: its size, and the number of requests from its own until it is
// freed.
struct Request {
  Bytes size;
  size_t span = 0;
  bool operator==(const Request&) const = default;
};

std::vector<Request> RequestsIn(const AllocationLog& log) {
  std::vector<Request> requests;
  for (const AllocationStep& step : log.steps()) {
    if (step.free) {
      requests[step.block].span = requests.size() - step.block;
    } else {
      requests.push_back({step.size, 0});
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].span == 0) requests[i].span = requests.size() - i;
  }
  return requests;
}

// Returns the first request of the first iteration from which on everything repeats; the number of
// requests if no iteration repeats.
size_t FindRepeat(const std::vector<Request>& requests, size_t period) {
  if (period == 0 || period > requests.size()) return requests.size();
  size_t repeat = requests.size() - period;
  while (repeat >= period &&
         std::equal(requests.begin() + static_cast<std::ptrdiff_t>(repeat - period),
                    requests.begin() + static_cast<std::ptrdiff_t>(repeat),
                    requests.begin() + static_cast<std::ptrdiff_t>(repeat))) {
    repeat -= period;
  }
  return repeat;
}

using Step = std::tuple<int64_t, bool, size_t>;  // time, true for a request, interval

// Returns the offset that the allocator gives each interval; nothing if one is not served.
std::vector<Bytes> OffsetsOn(Allocator& allocator, std::span<const LiveInterval> intervals,
                             const std::vector<Step>& steps) {
  std::vector<Block> blocks(intervals.size());
  for (const auto& [time, begins, i] : steps) {
    if (!begins) {
      allocator.Free(blocks[i]);
      continue;
    }
    const auto block = allocator.Allocate(intervals[i].size, Hint::kLow);
    if (!block) return {};
    blocks[i] = *block;
  }
  std::vector<Bytes> offsets;
  for (const Block& block : blocks) offsets.push_back(block.offset);
  return offsets;
}

}  // namespace

std::vector<std::vector<Bytes>> OnlinePlacements(std::span<const LiveInterval> intervals,
                                                 Bytes granularity) {
  std::vector<Step> steps;
  for (size_t i = 0; i < intervals.size(); ++i) {
    steps.emplace_back(intervals[i].begin, true, i);
    steps.emplace_back(intervals[i].end, false, i);
  }
  std::ranges::sort(steps);
  std::vector<std::vector<Bytes>> placements;
  for (const std::string_view name : {"best-fit", "first-fit", "cnmem", "pytorch"}) {
    if (name == "pytorch" && 512 % granularity.count() != 0) continue;
    const auto allocator = MakeAllocator(name, Bytes::Unlimited(), granularity);
    std::vector<Bytes> offsets = OffsetsOn(*allocator, intervals, steps);
    if (!offsets.empty()) placements.push_back(std::move(offsets));
  }
  return placements;
}

AllocationPlan PlanAllocations(const AllocationLog& log, size_t period, Bytes memory,
                               const PackingOptions& options) {
  const std::vector<Request> requests = RequestsIn(log);
  AllocationPlan plan;
  plan.repeat = FindRepeat(requests, period);
  const size_t planned = std::min(requests.size(), plan.repeat + period);
  std::vector<LiveInterval> intervals = IntervalsOf(log);
  // A block that outlives the planned iterations lives to their end. If it began in the repeated
  // iteration, it is also live when that iteration begins.
  const int64_t begin = planned > plan.repeat ? intervals[plan.repeat].begin : 0;
  const int64_t end = planned < requests.size() ? intervals[planned].begin
                                                : static_cast<int64_t>(log.steps().size());
  for (size_t i = 0; i < planned; ++i) {
    const bool outlives = i + requests[i].span > planned;
    if (outlives && i >= plan.repeat) intervals[i].begin = begin;
    intervals[i].end = outlives ? end : std::min(intervals[i].end, end);
    plan.sizes.push_back(requests[i].size);
  }
  intervals.resize(planned);
  for (size_t live = 0; const AllocationStep& step : log.steps()) {
    if (!step.free && plan.live.size() < planned) plan.live.push_back(live);
    step.free ? --live : ++live;
  }
  Packing packing = Pack(intervals, options, OnlinePlacements(intervals, options.granularity));
  plan.offsets = std::move(packing.offsets);
  plan.height = packing.height;
  plan.bound = packing.bound;
  plan.memory = memory;
  return plan;
}

Planned::Planned(Bytes capacity, Bytes granularity)
    : granularity_(granularity),
      recording_(std::make_unique<Stitched>(capacity, granularity, granularity)) {}

Planned::Planned(std::shared_ptr<const AllocationPlan> plan, Bytes granularity)
    : granularity_(granularity), plan_(std::move(plan)) {
  SPILLWAY_CHECK(granularity > Bytes(0) && plan_ != nullptr);
}

std::optional<Block> Planned::Allocate(Bytes size, Hint hint) {
  if (recording_) return recording_->Allocate(size, hint);
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  if (allocated_ + rounded > plan_->memory) return std::nullopt;
  const size_t next = NextRequest();
  const bool deviates = next == plan_->sizes.size() || plan_->sizes[next] != size ||
                        !IsFree(plan_->offsets[next], rounded);
  Bytes offset;
  if (deviates) {
    const Gap gap = BestGap(rounded);
    if (gap.size < rounded) return std::nullopt;
    offset = gap.offset;
  } else {
    offset = plan_->offsets[next];
    next_ = next + 1;
  }
  deviates_ = deviates;
  live_.emplace(offset, Live{offset + rounded, size});
  requested_ += size;
  allocated_ += rounded;
  reserved_ = std::max(reserved_, offset + rounded);
  return Block{offset, rounded};
}

void Planned::Free(const Block& block) {
  if (recording_) return recording_->Free(block);
  const auto live = live_.find(block.offset);
  SPILLWAY_CHECK(live != live_.end() && live->second.end == block.end());
  requested_ -= live->second.requested;
  allocated_ -= block.size;
  live_.erase(live);
}

MemoryStats Planned::Stats() const {
  if (recording_) return recording_->Stats();
  Bytes largest = RoundDown(plan_->memory - allocated_, granularity_);
  if (deviates_) largest = std::min(largest, RoundDown(BestGap(plan_->memory).size, granularity_));
  return {requested_, allocated_, reserved_, largest};
}

size_t Planned::NextRequest() const {
  const size_t all = plan_->sizes.size();
  if (plan_->repeat == all) return deviates_ ? all : next_;
  const size_t next = next_ == all ? plan_->repeat : next_;
  if (!deviates_ && plan_->live[next] == live_.size()) return next;
  if (plan_->live[plan_->repeat] == live_.size()) return plan_->repeat;
  return deviates_ ? all : next;
}

Planned::Gap Planned::BestGap(Bytes size) const {
  Gap best{Bytes(0), Bytes(-1)};
  Bytes floor;
  const auto look = [&](Bytes top) {
    const Gap gap{floor, top - floor};
    const bool suits = gap.size >= size;
    if (best.size < size ? gap.size > best.size : suits && gap.size < best.size) best = gap;
  };
  for (const auto& [offset, live] : live_) {
    look(offset);
    floor = live.end;
  }
  look(std::max(plan_->memory, plan_->height));
  return best;
}

bool Planned::IsFree(Bytes offset, Bytes size) const {
  const auto after = live_.lower_bound(offset);
  return (after == live_.end() || after->first >= offset + size) &&
         (after == live_.begin() || std::prev(after)->second.end <= offset);
}

}  // namespace spillway::sim
