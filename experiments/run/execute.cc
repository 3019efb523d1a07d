#include "experiments/run/execute.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

// The peer's part of a footprint on the GPU. Throws `UsageError` for pools that only simulate.
std::optional<CudaPeer> PeerOf(const Setup& setup) {
  std::optional<CudaPeer> peer;
  for (size_t i = 0; i < setup.device.pools.size(); ++i) {
    const ExternalPool& pool = setup.device.pools[i];
    if (pool.kind != ExternalPool::Kind::kPeer) {
      throw UsageError(
          fmt::format("backend 'cuda' has no pool '{}' (valid: host, peer)", Name(pool.kind)));
    }
    peer = CudaPeer{OutsidePool(i + 1), pool.gpu, setup.footprint->outside[i + 1]};
  }
  return peer;
}

// REQUIRES: the trace outlives it.
GivenData GivenDataOf(const std::shared_ptr<const GivenContents>& given, const Trace& trace) {
  if (!given) return nullptr;
  return [given, &trace](TensorId id, std::span<std::byte> bytes) {
    return given->Fill(trace, id, bytes);
  };
}

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
    const Device& device = request.setup.device;
    std::array<Bytes, kMaxPools> pools;
    for (const PoolId pool : PoolsBySpeed(device)) pools[NumberOf(pool)] = SizeOf(device, pool);
    CpuOptions cpu{Bytes::Unlimited(), pools, options.seed, options.drain_seed,
                   request.compression};
    cpu.given = GivenDataOf(options.given, request.trace);
    return Executing(std::make_unique<CpuBackend>(request.trace, cpu));
  }};
}

BackendFactory CudaFactory(std::shared_ptr<CudaMachine> machine, const CudaRun& options) {
  const auto make = [machine = std::move(machine), options](const BackendRequest& request) {
    const Setup& setup = request.setup;
    SPILLWAY_CHECK(setup.footprint && setup.options.iterations > 0);
    CudaRunOptions run;
    run.memory = setup.footprint->device;
    run.host_memory = setup.footprint->outside[NumberOf(PoolId::kHost)];
    run.peer = PeerOf(setup);
    run.work = options.work;
    run.backing = request.backing;
    run.timeline = options.timeline;
    if (setup.device.launch_ahead > 0) run.launch_ahead = setup.device.launch_ahead;
    run.stamped_iteration = setup.options.iterations;
    run.seed = options.seed;
    run.given = GivenDataOf(options.given, request.trace);
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
