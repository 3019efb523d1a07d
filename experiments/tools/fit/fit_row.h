// A workload on a device: what is asked of `FindFits`, and its answer for one change.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_ROW_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_ROW_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/changes/other_batch.h"
#include "experiments/output/peak.h"
#include "experiments/output/run_result.h"
#include "traces/trace.h"

namespace spillway::lab {

struct FitWorkload {
  std::string name;                    // as the user gave it
  std::shared_ptr<const Trace> trace;  // that is asked about
  BatchSource batch_source = BatchSource::kGiven;
  std::shared_ptr<const Trace> given;  // from which `trace` was made
  Case asked;                          // the case that `given` was loaded for
  bool leaves_recorded = false;        // as `FitRow::leaves_recorded`
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
  int64_t world = 1;   // `WorldOf` the step
  int64_t tokens = 0;  // `TokensOf` the step
  BatchSource batch_source = BatchSource::kGiven;
  std::string arithmetic;  // the times hold for matrix products in this arithmetic
  std::string cost;        // where the kernel times come from (`CostModel::Provenance`)
  // True if there are recorded kernel times, and analytic ones are taken as on the other devices.
  bool leaves_recorded = false;
  Bytes memory;             // device memory
  Bytes outside;            // the part of `memory` that is used outside the allocator
  Bytes recorded_reserved;  // peak reserved by PyTorch during the recording; 0 if unknown
  // "none", the `change` of a `PyTorchRemedy`, or of policies of research "policy" and "policy and
  // allocator".
  std::string change;
  std::string remedy;  // the change in words, if a user of PyTorch can make it
  std::string python;  // its code, one statement a line
  std::string policy, allocator;
  FitStatus status = FitStatus::kNot;
  // The run with unlimited memory has these metrics, except for policies of research.
  Metrics metrics;
  bool lacks_links = false;               // as `LacksLinks`
  std::optional<HostRange> host_range{};  // of the unchanged run, as `RunResult::host_range`
  double slowdown = 1;  // time per sample over that of the unchanged run with unlimited memory
  // What the allocator takes for the construction of the model, before the first iteration, if that
  // does not fit, and takes less if it is built elsewhere; else 0.
  Bytes construction;
  std::string reason;  // why it does not fit, or how the policy failed; empty if it fits
  MemoryPeak peak;     // the peak of the unchanged run with unlimited memory

  Bytes available() const { return memory - outside; }
  bool runs_in_pytorch() const { return !remedy.empty(); }
};

struct FitOptions {
  std::vector<PolicyChoice> policies;  // tried if the unchanged workload does not fit
  int jobs = 0;  // threads; 0 means one per core. The rows do not depend on it.
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_ROW_H_
