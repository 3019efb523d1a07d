#include "experiments/run/execute.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// Throws `InputError` if the trace has tensors or products of a type that the CPU backend does not
// compute with. The ops of a recorded trace have stand-ins, which read bytes of any type.
void RequireTypes(const Trace& trace) {
  if (trace.recording) return;
  const auto fail = [&](std::string_view what, std::string_view name, std::string_view type) {
    throw InputError(
        fmt::format("{} '{}' is of {}; the CPU backend computes in fp32 and bf16 only, so leave "
                    "precision out or use --backend sim",
                    what, name, type));
  };
  for (const Op& op : trace.ops) {
    for (const Slot& slot : op.slots) {
      if (slot.arithmetic != Arithmetic::kFp32 && slot.arithmetic != Arithmetic::kBf16) {
        fail("op", op.name, Name(slot.arithmetic));
      }
    }
  }
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.dtype != DataType::kFloat32 && tensor.dtype != DataType::kBfloat16 &&
        tensor.dtype != DataType::kInt32) {
      fail("tensor", tensor.name, Name(tensor.dtype));
    }
  }
}

// Returns the memory that the run needs on a peer GPU; nullopt if it has no peer. Throws
// `UsageError` for a pool that can only be simulated.
std::optional<CudaPeer> PeerOf(const Draft& draft) {
  std::optional<CudaPeer> peer;
  for (size_t i = 0; i < draft.device.pools.size(); ++i) {
    const ExternalPool& pool = draft.device.pools[i];
    if (pool.kind != ExternalPool::Kind::kPeer) {
      throw UsageError(
          fmt::format("backend 'cuda' has no pool '{}' (valid: host, peer)", Name(pool.kind)));
    }
    peer = CudaPeer{OutsidePool(i + 1), pool.gpu, draft.footprint->outside[i + 1]};
  }
  return peer;
}

// Returns a function that fills tensors with the given contents; nullptr if none are given. It is
// called once in each iteration for each input. REQUIRES: the trace outlives the function.
GivenData GivenDataOf(const std::shared_ptr<const GivenContents>& given, const Trace& trace) {
  if (!given) return nullptr;
  return [given, &trace, arrived = std::map<TensorId, int64_t>()](
             TensorId id, std::span<std::byte> bytes) mutable {
    return given->Fill(trace, id, arrived[id]++, bytes);
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
    RequireTypes(request.trace);
    // An address takes memory only when it is touched, and an allocator with segments may use more
    // addresses than there is memory. So the range of addresses has no limit.
    const Device& device = request.run.device;
    std::array<Bytes, kMaxPools> pools;
    for (const PoolId pool : PoolsBySpeed(device)) pools[NumberOf(pool)] = SizeOf(device, pool);
    CpuOptions cpu{Bytes::Unlimited(), pools, options.seed, options.drain_seed,
                   request.compression};
    cpu.given = GivenDataOf(options.given, request.trace);
    RunBackend made = Executing(std::make_unique<CpuBackend>(request.trace, cpu));
    made.keep_weights = options.keep_weights;
    return made;
  }};
}

BackendFactory CudaFactory(std::shared_ptr<CudaMachine> machine, const CudaRun& options) {
  const auto make = [machine = std::move(machine), options](const BackendRequest& request) {
    const Draft& draft = request.run;
    SPILLWAY_CHECK(draft.footprint && draft.options.iterations > 0);
    CudaRunOptions run;
    run.memory = draft.footprint->device;
    run.host_memory = draft.footprint->outside[NumberOf(PoolId::kHost)];
    run.peer = PeerOf(draft);
    run.work = options.work;
    run.backing = request.backing;
    run.timeline = options.timeline;
    if (draft.device.launch_ahead > 0) run.launch_ahead = draft.device.launch_ahead;
    run.stamped_iteration = draft.options.iterations;
    run.seed = options.seed;
    run.given = GivenDataOf(options.given, request.trace);
    run.compression = request.compression;
    RunBackend made = Executing(machine->Open(request.trace, *draft.cost, run));
    made.digest = options.digest && options.work == CudaWork::kKernels;
    made.keep_weights = options.keep_weights;
    made.complete = [pinned = run.host_memory](CompressionSummary& summary) {
      summary.pinned_peak = pinned + summary.staging;  // the bytes that were really pinned
    };
    return made;
  };
  return {make, true};
}

}  // namespace spillway::lab
