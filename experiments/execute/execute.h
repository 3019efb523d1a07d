// One run on real bytes: the CPU backend under the same runtime, allocators and policies as a
// simulation.

#ifndef SPILLWAY_EXPERIMENTS_EXECUTE_EXECUTE_H_
#define SPILLWAY_EXPERIMENTS_EXECUTE_EXECUTE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "experiments/simulate.h"
#include "sim/core/policy.h"

namespace spillway {

struct ExecuteOptions {
  uint64_t seed = 1;                   // of parameters, data and dropout
  std::optional<uint64_t> drain_seed;  // draws a legal order of execution; as issued if not given
  int iterations = 1;
};

struct Execution {
  Outcome outcome;            // its times are places in the order of execution
  std::optional<float> loss;  // of the last iteration
  // SHA-256 over all parameters and optimizer state (momentum, running statistics) after the last
  // iteration, in the order of the trace. It must not depend on policy, allocator, memory or
  // `drain_seed`. Empty if the workload does not fit.
  std::string weights_digest;
};

// Trains, or infers, on synthetic data. Throws `PolicyError` if the policy breaks its contract and
// `InputError` for an op that the CPU cannot execute.
Execution ExecuteOnCpu(const Setup& setup, Policy& policy, const ExecuteOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_EXECUTE_EXECUTE_H_
