// What a run is made of, as values, and what comes out of it.

#ifndef SPILLWAY_EXPERIMENTS_RUN_SETUP_H_
#define SPILLWAY_EXPERIMENTS_RUN_SETUP_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/run/compression_plan.h"
#include "sim/alloc/planned.h"
#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "sim/runtime/runtime.h"
#include "traces/trace.h"

namespace spillway {

// The backend that predicts. All others execute.
inline constexpr const char* kSimulator = "sim";

// How much memory a run touches.
struct Footprint {
  Bytes device;  // from the start of the arena
  // Of each pool outside from its start, by number. Of the host with compression, where each
  // storage that is not kept compressed has pinned memory for itself: the sum of their blocks.
  std::array<Bytes, kMaxPools> outside;
};

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
  std::string backend = kSimulator;                   // see assembler.h
  std::optional<Footprint> footprint = std::nullopt;  // for backends that need it: see resolve.h
  // The policy's plan of an earlier run (`Report::plan`); empty if there is none.
  std::string policy_plan = {};
  std::string memory_request = {};  // what `memory` was resolved from; empty: all of the device's
};

// A setup's view of a trace or cost model that is held elsewhere and outlives the setup.
template <typename T>
std::shared_ptr<const T> Borrow(const T& value) {
  return {std::shared_ptr<void>(), &value};
}

// Iterations that are not timed: libraries load, caches and clocks settle.
inline constexpr int kWarmUp = 3;

// What a run on real bytes has beyond its report.
struct Execution {
  std::optional<float> loss;  // of the last iteration
  std::vector<int64_t> top1;  // likewise, by sample; see `Executor::top1`
  // SHA-256 over all parameters and optimizer state (momentum, running statistics) after the last
  // iteration, in the order of the trace. It must depend on neither policy, allocator and memory
  // nor on the order of execution. Empty if it is not wanted.
  std::string weights_digest;
  // Where there is a clock: of all iterations; the last is slowed by stamps.
  std::vector<Duration> iteration_times;

  // The median of `iteration_times` but the first `kWarmUp` and the last, where there are that
  // many; else of the last. REQUIRES: there is a clock.
  Duration typical_iteration() const;
};

struct Outcome {
  Report report;  // times of the last iteration; on the CPU, places in the order
  std::shared_ptr<const Trace> trace;             // that ran, as the policy rewrote it
  std::optional<CompressionSummary> compression;  // where the setup has a plan and the run fits
  std::optional<Execution> execution;             // where the backend executes and the run fits
  std::string allocator;                          // that served it: where `auto`, what it chose
  size_t policy = 0;                              // likewise of the policies that `auto` had
};

// The device allocator that `setup` names, with its plan if it has one. Without a plan `planned` is
// what its recorded run has; `auto` is best-fit.
std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_SETUP_H_
