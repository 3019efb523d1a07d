// What a run is made of, as values, and what comes out of it.

#ifndef SPILLWAY_EXPERIMENTS_RUN_SETUP_H_
#define SPILLWAY_EXPERIMENTS_RUN_SETUP_H_

#include <memory>
#include <optional>
#include <string>

#include "experiments/run/compression.h"
#include "sim/alloc/planned.h"
#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "sim/runtime/runtime.h"
#include "traces/trace.h"

namespace spillway {

// Everything of a run but the policy.
struct Setup {
  std::shared_ptr<const Trace> trace;  // validated
  Device device;
  std::shared_ptr<const CostModel> cost;
  Bytes memory;  // of the device; `Bytes::Unlimited()` for no limit
  std::string allocator = "best-fit";
  RuntimeOptions options = {};
  std::shared_ptr<const AllocationPlan> plan = nullptr;  // of `planned`: see resolve.h
  // nullptr: what is offloaded stays as it is, in pinned memory. See compression.h.
  std::shared_ptr<const CompressionPlan> compression = nullptr;
};

// A setup's view of a trace or cost model that is held elsewhere and outlives the setup.
template <typename T>
std::shared_ptr<const T> Borrow(const T& value) {
  return {std::shared_ptr<void>(), &value};
}

struct Outcome {
  Report report;
  std::shared_ptr<const Trace> trace;             // that ran, as the policy rewrote it
  std::optional<CompressionSummary> compression;  // where the setup has a plan and the run fits
  std::string allocator;                          // that served it: where `auto`, what it chose
};

// What the policy makes of the trace, validated; the trace itself if it leaves it as it is.
std::shared_ptr<const Trace> Rewritten(const Setup& setup, Policy& policy);

// The device allocator that `setup` names, with its plan if it has one. Without a plan `planned` is
// what its recorded run has; `auto` is best-fit.
std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_SETUP_H_
