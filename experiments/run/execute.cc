#include "experiments/run/execute.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "experiments/run/resolve.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/sha256.h"

namespace spillway {
namespace {

// Where each tensor lies at the end of a placement log, the device before the host.
std::map<TensorId, Placement> FinalPlacements(const Report& report) {
  std::map<TensorId, Placement> device, host;
  for (const Placement& placement : report.placements) {
    if (placement.tensor == kNoTensor) continue;
    auto& held = placement.host ? host : device;
    const bool taken =
        placement.kind == PlacementKind::kAllocate || placement.kind == PlacementKind::kEnter;
    if (taken) {
      held[placement.tensor] = placement;
    } else {
      held.erase(placement.tensor);
    }
  }
  device.merge(host);
  return device;
}

std::string DigestWeights(const Trace& trace, const Report& report, const Executor& backend) {
  const auto placements = FinalPlacements(report);
  std::vector<std::byte> contents;
  std::string bytes;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    const bool trained =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    if (!trained || tensor.alias_of) continue;
    const Placement& placement = placements.at(static_cast<TensorId>(i));
    contents.resize(static_cast<size_t>(tensor.size.count()));
    backend.Read(placement.block, placement.host, contents);
    bytes.append(reinterpret_cast<const char*>(contents.data()), contents.size());
  }
  return Sha256(bytes);
}

// The end of the furthest block of an arena that a run uses.
Bytes Touched(const Report& report, bool host) {
  Bytes end = host ? Bytes(0) : report.metrics.peak_reserved;
  for (const Placement& placement : report.placements) {
    if (placement.host == host) end = std::max(end, placement.block.end());
  }
  return end;
}

// What the host of this trace keeps compressed, if anything.
std::optional<HostCompression> HostOf(const Setup& setup, const Trace& trace) {
  if (!setup.compression) return std::nullopt;
  return CompressionOf(*setup.compression, trace);
}

// The blocks of the host pool of storages that are not kept compressed, each storage once.
Bytes PinnedMemory(const Report& report, const HostCompression& compression) {
  std::set<TensorId> storages;
  Bytes total;
  for (const Placement& placement : report.placements) {
    if (!placement.host || placement.tensor == kNoTensor) continue;
    if (compression.Keeps(placement.tensor) || !storages.insert(placement.tensor).second) continue;
    total += placement.block.size;
  }
  return total;
}

// Runs on any backend; `make` gets the trace that runs.
Execution Execute(const Setup& setup, Policy& policy, const ExecuteOptions& options,
                  const std::function<std::unique_ptr<Executor>(const Trace&)>& make) {
  Execution execution;
  Outcome& outcome = execution.outcome;
  outcome.allocator = setup.allocator;
  outcome.trace = Rewritten(setup, policy);
  const Trace& trace = *outcome.trace;

  Device device = setup.device;
  device.memory = setup.memory;
  const auto arena = MakeArena(setup, device.memory);
  const auto host_pool = MakeAllocator("best-fit", device.host_memory, device.alignment);
  const std::unique_ptr<Executor> backend = make(trace);
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = setup.cost.get();
  parts.arena = arena.get();
  parts.host_pool = host_pool.get();
  parts.backend = backend.get();
  parts.policy = &policy;
  // Trial runs are predictions, here as on every backend.
  Setup trial = setup;
  trial.trace = outcome.trace;
  trial.plan = nullptr;
  trial.compression = nullptr;
  if (setup.plan) trial.memory = setup.plan->memory;
  parts.trial = [&](Policy& other) { return Simulate(trial, other).report; };
  RuntimeOptions runtime = setup.options;
  runtime.iterations = options.iterations;
  outcome.report = Run(parts, runtime);
  if (!outcome.report.fits()) return execution;
  if (const auto compression = HostOf(setup, trace)) {
    CompressionSummary summary = Summarize(*setup.compression, *compression, trace, outcome.report);
    summary.Measured(backend->stored(), backend->stored_peak());
    outcome.compression = std::move(summary);
  }
  execution.iteration_times = backend->iteration_times();
  execution.loss = backend->loss();
  if (options.digest && options.work == CudaWork::kKernels) {
    execution.weights_digest = DigestWeights(trace, outcome.report, *backend);
  }
  return execution;
}

}  // namespace

Duration Execution::typical_iteration() const {
  SPILLWAY_CHECK(!iteration_times.empty());
  if (iteration_times.size() < kWarmUp + 2) return iteration_times.back();
  std::vector<Duration> timed(iteration_times.begin() + kWarmUp, iteration_times.end() - 1);
  const auto middle = timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2);
  std::nth_element(timed.begin(), middle, timed.end());
  return *middle;
}

Setup ResolveForExecution(const Setup& setup,
                          const std::function<std::unique_ptr<Policy>()>& make_policy) {
  const Setup resolved = ResolveAllocator(setup, make_policy);
  const CompressionPlan* const plan = resolved.compression.get();
  if (plan == nullptr || (!plan->only_hidden && !plan->density && !plan->densities)) {
    return resolved;
  }
  return ResolveCompression(resolved, make_policy);
}

Execution ExecuteOnCpu(const Setup& setup, Policy& policy, const ExecuteOptions& options) {
  // Addresses are no memory until they are touched, and an allocator with segments may use more of
  // them than there is memory.
  const auto make = [&](const Trace& trace) {
    return std::make_unique<CpuBackend>(
        trace, CpuOptions{Bytes::Unlimited(), setup.device.host_memory, options.seed,
                          options.drain_seed, HostOf(setup, trace)});
  };
  return Execute(setup, policy, options, make);
}

Execution ExecuteOnCuda(const Setup& setup, Policy& policy, const Report& predicted,
                        CudaMachine& machine, const ExecuteOptions& options) {
  CudaRunOptions run;
  run.memory = Touched(predicted, /*host=*/false);
  run.host_memory = Touched(predicted, /*host=*/true);
  run.work = options.work;
  run.backing = MakeArena(setup, Bytes(0))->backing();
  run.timeline = options.timeline;
  if (setup.device.launch_ahead > 0) run.launch_ahead = setup.device.launch_ahead;
  run.stamped_iteration = options.iterations;
  run.seed = options.seed;
  const auto make = [&](const Trace& trace) {
    run.compression = HostOf(setup, trace);
    if (run.compression) run.host_memory = PinnedMemory(predicted, *run.compression);
    return machine.Open(trace, *setup.cost, run);
  };
  Execution execution = Execute(setup, policy, options, make);
  if (auto& summary = execution.outcome.compression) {
    summary->pinned_peak = run.host_memory + summary->staging;  // that was really pinned
  }
  return execution;
}

}  // namespace spillway
