// Whether a workload fits on a device under PyTorch's allocator, and what would make it fit.
//
// A workload is first run as it is: as recorded, or with each tensor until its last use. What the
// allocator reserves then with unlimited memory is its peak; the verdict comes from another run in
// the memory that there is. What would make it fit is run likewise, and only what was seen to fit
// is listed.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/peak.h"
#include "experiments/output/run_result.h"
#include "traces/trace.h"

namespace spillway {

struct FitWorkload {
  std::string name;  // as given
  std::shared_ptr<const Trace> trace;
};

enum class FitStatus : uint8_t {
  kFits,
  kReclaims,  // only because the allocator gives cached memory back to the driver
  kNot,
};

// A workload as it is on a device, or with a change that makes it fit.
struct FitRow {
  std::string workload, network, device;
  int64_t batch = 0;
  Bytes memory;             // of the device
  Bytes outside;            // of that, what is held beside the allocator
  Bytes recorded_reserved;  // what PyTorch held where it was recorded; 0: not known
  std::string change;       // "none", "allocator", "policy", "policy and allocator", "batch"
  std::string policy, allocator;
  FitStatus status = FitStatus::kNot;
  Metrics metrics;      // change "none": with unlimited memory; else as it fits
  double slowdown = 1;  // per sample, over the workload as it is with unlimited memory
  std::string reason;   // why it does not fit

  Bytes available() const { return memory - outside; }
};

struct FitOptions {
  std::vector<std::string> policies;  // to be tried where it does not fit as it is
  Bytes outside;
  int jobs = 0;  // threads; 0: one per core. Any number gives the same rows
};

struct Fit {
  FitRow as_it_is;
  MemoryPeak peak;              // of it
  std::vector<FitRow> changes;  // least slowdown first; none where it fits as it is
};

// The workloads on a device, each beside smaller batches of its network among them. `progress` is
// told what is finished. Throws `UsageError` for an unknown device or policy, and if the device has
// no more memory than is outside.
std::vector<Fit> FindFits(const std::vector<FitWorkload>& workloads, const std::string& device,
                          const FitOptions& options,
                          const std::function<void(const std::string& what)>& progress);

// One row per workload and device, each followed by its changes.
std::vector<FitRow> RowsOf(const std::vector<Fit>& fits);
Columns<FitRow> FitColumns();

// For people: the verdicts, then what would help where one is negative.
std::string FormatFits(const std::vector<Fit>& fits, size_t width);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_
