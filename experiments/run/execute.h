// One run on real bytes: an executing backend under the same runtime, allocators and policies as a
// simulation.

#ifndef SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
#define SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "experiments/run/simulate.h"
#include "sim/core/policy.h"

namespace spillway {

struct ExecuteOptions {
  uint64_t seed = 1;  // of parameters and data
  int iterations = 1;
  std::optional<uint64_t> drain_seed;  // CPU: draws a legal order of execution; as issued if not
                                       // given
  CudaWork work = CudaWork::kKernels;  // CUDA
  CudaTimeline timeline = CudaTimeline::kEvents;  // CUDA
  bool digest = true;  // whether `weights_digest` is wanted; it takes time
};

struct Execution {
  Outcome outcome;            // times of the last iteration; on the CPU, places in the order
  std::optional<float> loss;  // of the last iteration
  // SHA-256 over all parameters and optimizer state (momentum, running statistics) after the last
  // iteration, in the order of the trace. It must not depend on policy, allocator, memory or
  // `drain_seed`. Empty if the workload does not fit or nothing is computed.
  std::string weights_digest;
  std::vector<Duration> iteration_times;  // CUDA: of all iterations; the last is slowed by stamps

  // The median of `iteration_times` but the first `kWarmUp` and the last, where there are that
  // many; else of the last. REQUIRES: the run fits, on CUDA.
  Duration typical_iteration() const;
};

// Iterations that are not timed: libraries load, caches and clocks settle.
inline constexpr int kWarmUp = 3;

// The setup with all that has to be found out by simulation before a run on real bytes: as
// `ResolveAllocator` and `ResolveCompression` do. Compression without densities stays as it is:
// every feature map is compressed, which measures them.
Setup ResolveForExecution(const Setup& setup,
                          const std::function<std::unique_ptr<Policy>()>& make_policy);

// Trains, or infers, on synthetic data. Throws `PolicyError` if the policy breaks its contract and
// `InputError` for an op that the CPU cannot execute.
Execution ExecuteOnCpu(const Setup& setup, Policy& policy, const ExecuteOptions& options);

// As above on a GPU. `predicted` is the simulated run of the same setup with a policy like this
// one: it says how much memory the run touches. Throws `Error` also if the GPU or the host has not
// that much memory left.
Execution ExecuteOnCuda(const Setup& setup, Policy& policy, const Report& predicted,
                        CudaMachine& machine, const ExecuteOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
