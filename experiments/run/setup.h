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
#include "sim/core/report.h"
#include "sim/runtime/runtime.h"
#include "traces/trace.h"

namespace spillway {

// Everything of a run but the policy. The references outlive it.
struct Setup {
  const Trace& trace;
  const Device& device;
  const CostModel& cost;
  Bytes memory;  // of the device; `Bytes::Unlimited()` for no limit
  std::string allocator = "best-fit";
  RuntimeOptions options = {};
  std::shared_ptr<const AllocationPlan> plan = nullptr;  // of `planned`: see resolve.h
  // nullptr: what is offloaded stays as it is, in pinned memory. See compression.h.
  std::shared_ptr<const CompressionPlan> compression = nullptr;
};

struct Outcome {
  Report report;
  std::optional<Trace> rewritten;                 // the trace that ran, where the policy changed it
  std::optional<CompressionSummary> compression;  // where the setup has a plan and the run fits
  std::string allocator;                          // that served it: where `auto`, what it chose

  const Trace& trace(const Setup& setup) const { return rewritten ? *rewritten : setup.trace; }
};

// The device allocator that `setup` names, with its plan if it has one. Without a plan `planned` is
// what its recorded run has; `auto` is best-fit.
std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_SETUP_H_
