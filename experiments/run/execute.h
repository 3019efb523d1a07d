// Makes the backends that execute on real bytes, for programs that link them.

#ifndef SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
#define SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/cuda/cuda_backend.h"
#include "experiments/run/given_contents.h"
#include "experiments/run/run.h"

namespace spillway::lab {

// Options of a run on the CPU.
struct CpuRun {
  uint64_t seed = 1;                   // draws parameters and data
  std::optional<uint64_t> drain_seed;  // draws a legal order of execution; nullopt: order of issue
  std::shared_ptr<const GivenContents> given = nullptr;  // replaces synthetic data
  bool keep_weights = false;                             // in `Execution::weights`
};

// Options of a run on a GPU.
struct CudaRun {
  uint64_t seed = 1;  // draws parameters and data
  CudaWork work = CudaWork::kKernels;
  CudaTimeline timeline = CudaTimeline::kEvents;
  bool digest = true;  // computes `weights_digest` if kernels run, which takes time
  std::shared_ptr<const GivenContents> given = nullptr;  // replaces synthetic data
  bool keep_weights = false;                             // in `Execution::weights`
};

// Returns a factory of backends that train or infer on the CPU, on synthetic or given data. A run
// throws `InputError` for an op that the CPU cannot execute.
BackendFactory CpuFactory(const CpuRun& options = {});

// Returns a factory of backends that train or infer on a GPU, one run after the other. The last
// iteration of a run has time stamps. A run throws `Error` if the GPU or the host has less memory
// left than the footprint says. REQUIRES: the run has a footprint and a number of iterations.
BackendFactory CudaFactory(std::shared_ptr<CudaMachine> machine, const CudaRun& options);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_EXECUTE_H_
