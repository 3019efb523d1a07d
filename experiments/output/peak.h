// Finds the tensors that hold the device memory when the most bytes are requested.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_

#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// A tensor or workspace that is on the device at the peak.
struct PeakHolder {
  std::string name;  // the name of a tensor, or "workspace"
  std::string kind;  // the kind of the tensor, or "workspace"
  Bytes requested;
};

// The moment at which the most bytes are requested.
struct MemoryPeak {
  std::string op;  // name of the op at which the peak is reached first
  Bytes requested;
  std::vector<PeakHolder> holders;  // most bytes first, then by name
};

// Returns the peak. REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
MemoryPeak FindPeak(const Trace& trace, const Report& report);

// Returns a text for people with the bytes of each kind and the `most` largest holders.
std::string FormatPeak(const MemoryPeak& peak, size_t most);

Columns<PeakHolder> PeakColumns();

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
