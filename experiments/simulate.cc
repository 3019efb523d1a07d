#include "experiments/simulate.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "experiments/arena.h"
#include "sim/alloc/make_allocator.h"
#include "sim/core/error.h"
#include "sim/engine/sim_backend.h"

namespace spillway {
namespace {

// Does nothing: the runtime's own liveness and the fastest kernels.
class IdealPolicy final : public Policy {};

Report SimulateTrace(const Setup& setup, const Trace& trace, Policy& policy,
                     Allocator* given = nullptr) {
  Device device = setup.device;
  device.memory = setup.memory;
  std::unique_ptr<Allocator> own;
  if (given == nullptr) own = MakeArena(setup, device.memory);
  Allocator* const arena = given == nullptr ? own.get() : given;
  const auto host_pool = MakeAllocator("best-fit", device.host_memory, device.alignment);
  SimBackend backend(device, setup.cost, arena->UsesDriver());
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = &setup.cost;
  parts.arena = arena;
  parts.host_pool = host_pool.get();
  parts.backend = &backend;
  parts.policy = &policy;
  // A plan is for one policy; a trial of another one runs as the recorded run did.
  Setup trial = setup;
  trial.plan = nullptr;
  if (setup.plan) trial.memory = setup.plan->memory;
  parts.trial = [&](Policy& other) { return SimulateTrace(trial, trace, other); };
  return Run(parts, setup.options);
}

}  // namespace

Outcome Simulate(const Setup& setup, Policy& policy, Allocator* arena) {
  Outcome outcome;
  outcome.rewritten = policy.Rewrite(setup.trace, setup.device, setup.cost);
  if (outcome.rewritten) outcome.rewritten->Validate();
  outcome.report = SimulateTrace(setup, outcome.trace(setup), policy, arena);
  return outcome;
}

Report SimulateIdeal(const Setup& setup) {
  Setup unlimited = setup;
  unlimited.memory = Bytes::Unlimited();
  unlimited.plan = nullptr;
  IdealPolicy policy;
  return SimulateTrace(unlimited, setup.trace, policy);
}

Bytes ParseMemory(std::string_view text, const Setup& setup) {
  if (text == "unlimited") return Bytes::Unlimited();
  if (!text.ends_with('%')) {
    try {
      return ParseBytes(text);
    } catch (const InputError& error) {
      throw UsageError(fmt::format("memory: {}; also accepted: N% and unlimited", error.what()));
    }
  }
  double percent = 0;
  const char* last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data(), last, percent);
  if (error != std::errc() || end != last || !(percent >= 0) || percent > 1e6) {
    throw UsageError(fmt::format("memory: '{}' is not a percentage from 0% up", text));
  }
  const Bytes bound = LayerBound(setup.trace, setup.device.alignment);
  const Bytes peak = SimulateIdeal(setup).metrics.peak_reserved;
  const double extra = static_cast<double>((peak - bound).count()) * percent / 100;
  return RoundUp(bound + Bytes(static_cast<int64_t>(extra)), setup.device.alignment);
}

}  // namespace spillway
