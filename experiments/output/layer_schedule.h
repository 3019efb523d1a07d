// An iteration layer by layer: in how many ops it runs, from where on what it needs is fetched,
// what it takes and what it waits for.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_

#include <optional>
#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

struct LayerSchedule {
  LayerId layer{};
  int64_t ops = 0;                    // that were run; with mmCNN's slices its sn
  int64_t prefetches = 0;             // copies to the device that the policy asked for ahead
  std::optional<OpId> prefetch_from;  // the op at which the first of them was issued
  Bytes memory;                       // the most that is allocated from its first op to its last
  Bytes in, out;                      // copied for it to the device, and away from it meanwhile
  Duration compute;
  Duration stall;  // the compute stream's, before its kernels
};

// The layers that have ops, in the order of their first. REQUIRES: the logs are complete
// (`report.fits()`).
std::vector<LayerSchedule> ScheduleOf(const Trace& trace, const Report& report);

// As CSV (RFC 4180), a line for each layer.
std::string FormatScheduleCsv(const Trace& trace, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_
