#include "experiments/execute/execute.h"

#include <map>
#include <string_view>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "experiments/sha256.h"
#include "sim/alloc/make_allocator.h"

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

std::string DigestWeights(const Trace& trace, const Report& report, const CpuBackend& backend) {
  const auto placements = FinalPlacements(report);
  std::string bytes;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    const bool trained =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    if (!trained || tensor.alias_of) continue;
    const Placement& placement = placements.at(static_cast<TensorId>(i));
    const Region& region = placement.host ? backend.host() : backend.device();
    const auto contents = region.At({placement.block.offset, tensor.size});
    bytes.append(reinterpret_cast<const char*>(contents.data()), contents.size());
  }
  return Sha256(bytes);
}

}  // namespace

Execution ExecuteOnCpu(const Setup& setup, Policy& policy, const ExecuteOptions& options) {
  Execution execution;
  Outcome& outcome = execution.outcome;
  outcome.rewritten = policy.Rewrite(setup.trace, setup.device, setup.cost);
  if (outcome.rewritten) outcome.rewritten->Validate();
  const Trace& trace = outcome.trace(setup);

  Device device = setup.device;
  device.memory = setup.memory;
  const auto arena = MakeAllocator(setup.allocator, device.memory, device.alignment);
  const auto host_pool = MakeAllocator("best-fit", device.host_memory, device.alignment);
  CpuBackend backend(trace, {device.memory, device.host_memory, options.seed, options.drain_seed});
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = &setup.cost;
  parts.arena = arena.get();
  parts.host_pool = host_pool.get();
  parts.backend = &backend;
  parts.policy = &policy;
  // Trial runs are predictions, here as on every backend.
  Setup trial = {trace, setup.device, setup.cost, setup.memory, setup.allocator, setup.options};
  parts.trial = [&](Policy& other) { return Simulate(trial, other).report; };
  RuntimeOptions runtime = setup.options;
  runtime.iterations = options.iterations;
  outcome.report = Run(parts, runtime);
  if (outcome.report.fits()) {
    execution.loss = backend.loss();
    execution.weights_digest = DigestWeights(trace, outcome.report, backend);
  }
  return execution;
}

}  // namespace spillway
