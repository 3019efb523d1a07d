// The backends that execute on real bytes, for programs that link them.

#ifndef SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
#define SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/cuda/cuda_backend.h"
#include "experiments/run/assembler.h"
#include "experiments/run/given_contents.h"

namespace spillway {

struct CpuRun {
  uint64_t seed = 1;                   // of parameters and data
  std::optional<uint64_t> drain_seed;  // draws a legal order of execution; as issued if not given
  std::shared_ptr<const GivenContents> given = nullptr;  // instead of synthetic data
};

struct CudaRun {
  uint64_t seed = 1;  // of parameters and data
  CudaWork work = CudaWork::kKernels;
  CudaTimeline timeline = CudaTimeline::kEvents;
  bool digest = true;  // whether `weights_digest` is wanted of kernels; it takes time
  std::shared_ptr<const GivenContents> given = nullptr;  // instead of synthetic data
};

// Trains, or infers, on synthetic data. A run throws `InputError` for an op that the CPU cannot
// execute.
BackendFactory CpuFactory(const CpuRun& options = {});

// As above on a GPU, one run after the other; the last iteration is stamped. A run throws `Error`
// also if the GPU or the host has not as much memory left as the footprint says. REQUIRES: the
// setup has a footprint and a number of iterations.
BackendFactory CudaFactory(std::shared_ptr<CudaMachine> machine, const CudaRun& options);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
