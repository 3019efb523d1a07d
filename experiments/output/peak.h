// Who holds the device memory at its worst moment: that of the most bytes requested.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_

#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

struct PeakHolder {
  std::string name;  // of a tensor, or "workspace"
  std::string kind;  // of the tensor; "workspace"
  Bytes requested;
};

struct MemoryPeak {
  std::string op;  // of the trace, at which it is reached first
  Bytes requested;
  std::vector<PeakHolder> holders;  // most bytes first, then by name
};

// REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
MemoryPeak FindPeak(const Trace& trace, const Report& report);

// A paragraph for people: the bytes of each kind, and the `most` largest holders.
std::string FormatPeak(const MemoryPeak& peak, size_t most);

Columns<PeakHolder> PeakColumns();

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
