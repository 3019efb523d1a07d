#include "experiments/output/memory_timeline.h"

#include <fmt/format.h>

#include "experiments/output/columns.h"
#include "traces/base/error.h"

namespace spillway::lab {

std::vector<Duration> PlacementTimes(const Report& report) {
  SPILLWAY_CHECK(report.fits());
  std::vector<Duration> times;
  times.reserve(report.placements.size());
  size_t kernel = 0;  // the first kernel that was issued after the change
  bool first_kernel = true;
  for (const Placement& placement : report.placements) {
    while (kernel < report.timeline.size() &&
           (kernel < placement.commands || report.timeline[kernel].kind != CommandKind::kKernel)) {
      first_kernel &= report.timeline[kernel].kind != CommandKind::kKernel;
      ++kernel;
    }
    times.push_back(first_kernel                      ? Duration()
                    : kernel < report.timeline.size() ? report.timeline[kernel].interval.start
                                                      : report.metrics.iteration);
  }
  return times;
}

std::vector<MemorySample> MemoryTimeline(const Report& report) {
  const std::vector<Duration> times = PlacementTimes(report);
  std::vector<MemorySample> samples;
  MemorySample now;
  for (size_t i = 0; i < report.placements.size(); ++i) {
    const Placement& placement = report.placements[i];
    now.time = times[i];
    if (placement.on_device()) now.reserved = placement.reserved;
    const bool takes = placement.kind == PlacementKind::kAllocate;
    if (!takes && placement.kind != PlacementKind::kFree) continue;  // inside a reserved block
    const int64_t sign = takes ? 1 : -1;
    if (!placement.on_device()) {
      now.outside[NumberOf(placement.pool)] += sign * placement.block.size;
    } else {
      now.requested += sign * placement.requested;
      now.allocated += sign * placement.block.size;
    }
    now.op = placement.op;
    now.change = static_cast<uint32_t>(i);
    samples.push_back(now);
  }
  return samples;
}

std::string FormatMemoryCsv(const Trace& trace, const Report& report) {
  const auto placement = [&](const MemorySample& sample) -> const Placement& {
    return report.placements[sample.change];
  };
  Columns<MemorySample> columns{
      {"time_ms", "ms", "exact to the picosecond",
       [](auto& sample) {
         const int64_t time = sample.time.picoseconds();
         return fmt::format("{}.{:09}", time / 1'000'000'000, time % 1'000'000'000);
       }},
      {"step", "1", "the op of the trace at which the change was made",
       [](auto& sample) { return Index(sample.op); }},
      {"op", "", "its name", [&](auto& sample) { return trace.op(sample.op).name; }},
      {"change", "", "allocate or free, on the host pin or unpin, in other pools store or discard",
       [&](auto& sample) {
         const bool takes = placement(sample).kind == PlacementKind::kAllocate;
         if (placement(sample).on_device()) return takes ? "allocate" : "free";
         if (placement(sample).pool == PoolId::kHost) return takes ? "pin" : "unpin";
         return takes ? "store" : "discard";
       }},
      {"tensor", "", "absent for a workspace and for a reserved block",
       [&](auto& sample) {
         const TensorId tensor = placement(sample).tensor;
         return tensor == kNoTensor ? std::nullopt : std::optional(trace.tensor(tensor).name);
       }},
      {"change_bytes", "B", "of the block", [&](auto& s) { return placement(s).block.size; }},
      {"requested_bytes", "B", "on the device", &MemorySample::requested},
      {"allocated_bytes", "B", "on the device", &MemorySample::allocated},
      {"reserved_bytes", "B", "on the device", &MemorySample::reserved},
      {"pinned_bytes", "B", "on the host", [](auto& sample) { return sample.pinned(); }},
  };
  for (size_t i = 1; i < report.pools.size(); ++i) {
    columns.push_back({report.pools[i] + "_bytes", "B", "in that pool",
                       [i](auto& sample) { return sample.outside[i]; }});
  }
  return FormatCsv(columns, MemoryTimeline(report));
}

}  // namespace spillway::lab
