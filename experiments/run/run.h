// Runs a `Prepared` run on its backend, and simulates a `Draft`. `Run` and `Predict` are the only
// functions that do so.
//
// Backends are made by name. The simulator is always there. A program adds the other backends that
// it links, so that this library does not link CUDA.

#ifndef SPILLWAY_EXPERIMENTS_RUN_RUN_H_
#define SPILLWAY_EXPERIMENTS_RUN_RUN_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "experiments/run/prepared.h"
#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/executor.h"

namespace spillway::lab {

// The parts of a run that its backend is made from. They outlive the backend.
struct BackendRequest {
  const Draft& run;    // `run.device.memory` is the memory of the run
  const Trace& trace;  // the trace that runs
  Backing backing;     // the backing of the run's allocator
  const std::optional<HostCompression>& compression;
};

// A backend for one run.
struct RunBackend {
  std::unique_ptr<Backend> backend;
  Executor* executor = nullptr;  // the same object as `backend` if that executes
  bool digest = true;            // true if the weights are to be digested after an execution
  bool keep_weights = false;     // true if the outcome is to have the weights, too
  // Adds to the summary of a finished run the numbers that only this backend knows. May be empty.
  std::function<void(CompressionSummary&)> complete = nullptr;
};

// Makes the backends of one name.
struct BackendFactory {
  std::function<RunBackend(const BackendRequest&)> make;
  bool needs_footprint = false;  // true if the backend takes its memory before the run
};

// The factories of all backends by name.
class BackendFactories {
 public:
  // Has only the simulator.
  BackendFactories();

  // Adds a factory, which replaces an earlier factory of the same name.
  void Add(const std::string& name, BackendFactory factory);

  // Returns the factory called `name`. Throws `UsageError` with a suggestion and the valid names
  // for an unknown name.
  const BackendFactory& Find(const std::string& name) const;

 private:
  std::map<std::string, BackendFactory> factories_;
};

// Runs the policy on the backend that the run names. `Policy::Prepare` decides how much of the
// run's memory the device has. Trial runs that the policy makes are simulated, by default to their
// steady state. They use the run's trace, but not its plan of offsets and not its compression.
// Throws `PolicyError` if the policy breaks its contract, and the errors of the backend.
Outcome Run(const Prepared& prepared, const BackendFactories& backends = {});

// Simulates the run as far as it is decided, in place of its backend: this many iterations, or with
// 0 until they are steady. Throws as `Run`.
Outcome Predict(const Draft& run, int iterations = 0);

// Returns the trace that the policy of the run makes of the run's own, by `Policy::Prepare`;
// nullopt if the policy leaves the trace alone. Throws as `Run`.
std::optional<Trace> RewrittenTrace(const Draft& run);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_RUN_H_
