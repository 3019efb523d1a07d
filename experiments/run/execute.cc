#include "experiments/run/execute.h"

#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

RunBackend Executing(std::unique_ptr<Executor> executor) {
  RunBackend made;
  made.executor = executor.get();
  made.backend = std::move(executor);
  return made;
}

}  // namespace

BackendFactory CpuFactory(const CpuRun& options) {
  return {[options](const BackendRequest& request) {
    // Addresses are no memory until they are touched, and an allocator with segments may use more
    // of them than there is memory.
    return Executing(std::make_unique<CpuBackend>(
        request.trace, CpuOptions{Bytes::Unlimited(), request.setup.device.host_memory,
                                  options.seed, options.drain_seed, request.compression}));
  }};
}

BackendFactory CudaFactory(std::shared_ptr<CudaMachine> machine, const CudaRun& options) {
  const auto make = [machine = std::move(machine), options](const BackendRequest& request) {
    const Setup& setup = request.setup;
    SPILLWAY_CHECK(setup.footprint && setup.options.iterations > 0);
    CudaRunOptions run;
    run.memory = setup.footprint->device;
    run.host_memory = setup.footprint->host;
    run.work = options.work;
    run.backing = request.backing;
    run.timeline = options.timeline;
    if (setup.device.launch_ahead > 0) run.launch_ahead = setup.device.launch_ahead;
    run.stamped_iteration = setup.options.iterations;
    run.seed = options.seed;
    run.compression = request.compression;
    RunBackend made = Executing(machine->Open(request.trace, *setup.cost, run));
    made.digest = options.digest && options.work == CudaWork::kKernels;
    made.complete = [pinned = run.host_memory](CompressionSummary& summary) {
      summary.pinned_peak = pinned + summary.staging;  // that was really pinned
    };
    return made;
  };
  return {make, true};
}

}  // namespace spillway
