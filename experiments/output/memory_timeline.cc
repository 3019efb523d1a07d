#include "experiments/output/memory_timeline.h"

#include <fmt/format.h>

#include "experiments/output/result_row.h"
#include "traces/base/error.h"

namespace spillway {

std::vector<MemorySample> MemoryTimeline(const Report& report) {
  SPILLWAY_CHECK(report.fits());
  std::vector<MemorySample> samples;
  MemorySample now;
  size_t kernel = 0;  // the first kernel that was issued after the change
  bool first_kernel = true;
  for (size_t i = 0; i < report.placements.size(); ++i) {
    const Placement& placement = report.placements[i];
    while (kernel < report.timeline.size() &&
           (kernel < placement.commands || report.timeline[kernel].kind != CommandKind::kKernel)) {
      first_kernel &= report.timeline[kernel].kind != CommandKind::kKernel;
      ++kernel;
    }
    now.time = first_kernel                      ? Duration()
               : kernel < report.timeline.size() ? report.timeline[kernel].interval.start
                                                 : report.metrics.iteration;
    if (!placement.host) now.reserved = placement.reserved;
    const bool takes = placement.kind == PlacementKind::kAllocate;
    if (!takes && placement.kind != PlacementKind::kFree) continue;  // inside a reserved block
    const int64_t sign = takes ? 1 : -1;
    if (placement.host) {
      now.pinned += sign * placement.block.size;
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
  std::vector<Row> rows;
  for (const MemorySample& sample : MemoryTimeline(report)) {
    const Placement& placement = report.placements[sample.change];
    const bool takes = placement.kind == PlacementKind::kAllocate;
    const char* change = placement.host ? (takes ? "pin" : "unpin") : (takes ? "allocate" : "free");
    const int64_t time = sample.time.picoseconds();
    rows.push_back(
        {{"time_ms", fmt::format("{}.{:09}", time / 1'000'000'000, time % 1'000'000'000)},
         {"step", static_cast<int64_t>(Index(sample.op))},
         {"op", trace.op(sample.op).name},
         {"change", std::string(change)},
         {"tensor",
          placement.tensor == kNoTensor ? Value() : Value(trace.tensor(placement.tensor).name)},
         {"change_bytes", placement.block.size.count()},
         {"requested_bytes", sample.requested.count()},
         {"allocated_bytes", sample.allocated.count()},
         {"reserved_bytes", sample.reserved.count()},
         {"pinned_bytes", sample.pinned.count()}});
  }
  return FormatCsv(rows);
}

}  // namespace spillway
