// Summarizes an iteration layer by layer: the number of ops, the prefetches, the memory, and the
// times of computing and waiting.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_

#include <optional>
#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// The summary of one layer.
struct LayerSchedule {
  LayerId layer{};
  int64_t ops = 0;                    // ops that ran; with mmCNN's slices, its number sn
  int64_t prefetches = 0;             // prefetches of storages that the layer uses next
  std::optional<OpId> prefetch_from;  // the op at which the first prefetch was issued
  Bytes memory;                       // the most bytes allocated during the ops of the layer
  Bytes in, out;  // copied to the device for the layer, and to the host during its ops
  Duration compute;
  Duration stall;  // time that the compute stream waited before kernels of the layer
};

// Returns the layers that ran ops, in the order of their first ops. REQUIRES: the logs are complete
// (`report.fits()`).
std::vector<LayerSchedule> ScheduleOf(const Trace& trace, const Report& report);

// Returns the schedule as CSV (RFC 4180), with a line for each layer.
std::string FormatScheduleCsv(const Trace& trace, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_LAYER_SCHEDULE_H_
