// Finds out if a workload fits on a device under PyTorch's allocator, and which changes make it
// fit.
//
// A workload is first run unchanged: with the recorded lifetimes if the trace has a recording, else
// with each tensor held until its last use. A run with unlimited memory gives the peaks. A second
// run in the available memory gives the verdict. A change that a user of PyTorch can make is
// predicted in the same way. A policy of research is run in the available memory only.

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
#include "experiments/tools/fit/other_batch.h"
#include "traces/trace.h"

namespace spillway {

struct FitWorkload {
  std::string name;                    // as the user gave it
  std::shared_ptr<const Trace> trace;  // that is asked about
  BatchSource batch_source = BatchSource::kGiven;
  std::shared_ptr<const Trace> given;  // from which `trace` was made
  Case asked;                          // the case that `given` was loaded for
};

enum class FitStatus : uint8_t {
  kFits,
  kReclaims,  // fits only because the allocator gives cached memory back to the driver
  kNot,       // does not fit
  kFailed,    // the policy failed
};

// The result of a workload on a device, either unchanged or with a change.
struct FitRow {
  std::string workload, network, device;
  int64_t batch = 0;
  BatchSource batch_source = BatchSource::kGiven;
  std::string arithmetic;   // of the matrix products for which the times hold
  Bytes memory;             // device memory
  Bytes outside;            // the part of `memory` that is used outside the allocator
  Bytes recorded_reserved;  // peak reserved by PyTorch during the recording; 0 if unknown
  // "none", "allocator", "checkpoint", "selective checkpoint", "save_on_cpu", "batch", or of
  // policies of research "policy" and "policy and allocator".
  std::string change;
  std::string remedy;  // the change in words, if a user of PyTorch can make it
  std::string python;  // its code, one statement a line
  std::string policy, allocator;
  FitStatus status = FitStatus::kNot;
  // Of the run with unlimited memory, except for policies of research.
  Metrics metrics;
  double slowdown = 1;  // time per sample over that of the unchanged run with unlimited memory
  std::string reason;   // why it does not fit, or how the policy failed; empty if it fits
  MemoryPeak peak;      // of the unchanged run with unlimited memory

  Bytes available() const { return memory - outside; }
  bool runs_in_pytorch() const { return !remedy.empty(); }
};

struct FitOptions {
  std::vector<PolicyChoice> policies;  // tried if the unchanged workload does not fit
  Bytes outside;                       // device memory that is used outside the allocator
  int jobs = 0;  // threads; 0 means one per core. The rows do not depend on it.
};

struct Fit {
  FitRow as_it_is;               // the unchanged workload
  std::vector<FitRow> changes;   // least slowdown first; empty if the unchanged workload fits
  std::vector<FitRow> misses;    // changes in PyTorch that help, and with which it does not fit
  std::vector<FitRow> failures;  // policies of research that failed
  std::vector<std::string> not_tried;  // sentences on changes that could not be predicted
};

// Returns one `Fit` for each workload on the device. A smaller batch of the same network in
// `workloads` counts as a change. Calls `progress` before each workload starts. Throws `UsageError`
// if the device or a policy is unknown, or if the device has no more memory than
// `options.outside`. Throws `PolicyError` if a workload does not run in unlimited memory.
std::vector<Fit> FindFits(const std::vector<FitWorkload>& workloads, const std::string& device,
                          const FitOptions& options,
                          const std::function<void(const std::string& what)>& progress);

// Returns one row per workload and device, each followed by the rows of its changes, misses and
// failures.
std::vector<FitRow> RowsOf(const std::vector<Fit>& fits);
Columns<FitRow> FitColumns();

// Returns a text for people: a table of the verdicts, then the changes for each workload that does
// not fit, then the memory peak of each workload. Tables have at most `width` characters per line,
// or any number if it is 0.
std::string FormatFits(const std::vector<Fit>& fits, size_t width);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_
