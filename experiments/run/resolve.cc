#include "experiments/run/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "policies/plugin/library.h"
#include "sim/alloc/make_allocator.h"
#include "sim/alloc/planned.h"
#include "sim/alloc/recording_allocator.h"
#include "sim/packing/allocation_log.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway {
namespace {

// How often a run is planned until its plan fits, and how far above its bound a later plan may be,
// in thousandths: so far that only the memory counts.
constexpr int kAttempts = 4;
constexpr int64_t kAnything = 1000;
// From the second time on, this part of the memory is left besides.
constexpr int64_t kMargin = 500;

std::string NameOf(const Setup& setup) {
  return ParseSpecification("allocator", setup.allocator).name;
}

// Requests of the iteration that a report describes, without what is held from before: as many as
// are given back, for in the end the same blocks are held.
size_t RequestsPerIteration(const Report& report) {
  return static_cast<size_t>(std::count_if(
      report.placements.begin(), report.placements.end(),
      [](const Placement& p) { return p.on_device() && p.kind == PlacementKind::kFree; }));
}

// What `planned` and the policy do when they run again.
struct Plans {
  AllocationPlan blocks;
  std::string policy;
};

Plans PlansFor(const Setup& recorded, const PolicyMaker& make, const PackingOptions& options) {
  Bytes memory;
  std::optional<Planned> arena;
  std::optional<RecordingAllocator> recorder;
  const Outcome outcome = Simulate(recorded, *make(), [&](Bytes capacity) -> Allocator& {
    memory = capacity;
    arena.emplace(capacity, options.granularity);
    return recorder.emplace(*arena);
  });
  const bool fits = outcome.report.fits();
  return {PlanAllocations(recorder->log(), fits ? RequestsPerIteration(outcome.report) : 0, memory,
                          options),
          fits ? outcome.report.plan : std::string()};
}

PackingOptions PackingFor(const Setup& setup) {
  PackingOptions options;
  options.granularity = setup.device.alignment;
  options.memory = setup.memory;
  const Specification allocator = ParseSpecification("allocator", setup.allocator);
  if (allocator.name == "planned") options.steps = PlannedSteps(allocator);
  return options;
}

Setup WithPlan(const Setup& setup, const PolicyMaker& make) {
  PackingOptions options = PackingFor(setup);
  Setup planned = setup;
  Setup recorded = setup;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Plans plans = PlansFor(recorded, make, options);
    planned.plan = std::make_shared<const AllocationPlan>(std::move(plans.blocks));
    planned.policy_plan = std::move(plans.policy);
    if (planned.plan->height <= setup.memory) break;
    recorded.memory -= planned.plan->height - setup.memory;
    recorded.memory -= Bytes(setup.memory.count() / kMargin * attempt);
    options.tolerance = kAnything;
  }
  return planned;
}

// What `auto` tries.
std::vector<std::string> Candidates() {
  std::vector<std::string> candidates;
  for (const AllocatorInfo& info : Allocators()) {
    if (info.name == "auto") continue;
    candidates.push_back(info.name);
    if (info.name == "high-end") candidates.push_back("high-end:reading=text");
    if (info.name == "pytorch") candidates.push_back("pytorch:expandable_segments=true");
  }
  return candidates;
}

Resolved Choose(const Setup& setup, std::span<const PolicyMaker> policies) {
  Specification specification = ParseSpecification("allocator", setup.allocator);
  const bool by_time = AutoByTime(specification);
  std::optional<Resolved> best;
  std::pair<int64_t, int64_t> best_cost;
  for (size_t i = 0; i < policies.size(); ++i) {
    for (const std::string& candidate : Candidates()) {
      Setup named = setup;
      named.allocator = candidate;
      const Setup tried = ResolveAllocator(named, policies[i]);
      const Report report = Simulate(tried, *policies[i]()).report;
      if (!report.fits()) continue;
      std::pair cost(report.metrics.peak_reserved.count(), report.metrics.iteration.picoseconds());
      if (by_time) std::swap(cost.first, cost.second);
      if (best && cost >= best_cost) continue;
      best.emplace(Resolved{tried, i});
      best->setup.policy_plan = report.plan;
      best_cost = cost;
    }
  }
  if (best) return *best;
  Setup fallback = setup;
  fallback.allocator = "best-fit";
  return {fallback, 0};
}

// The end of the furthest block of an arena that a run uses.
Bytes Touched(const Report& report, PoolId pool) {
  Bytes end = pool == PoolId::kDevice ? report.metrics.peak_reserved : Bytes(0);
  for (const Placement& placement : report.placements) {
    if (placement.pool == pool) end = std::max(end, placement.block.end());
  }
  return end;
}

// The blocks of the host pool of storages that are not kept compressed, each storage once.
Bytes PinnedMemory(const Report& report, const HostCompression& compression) {
  std::set<TensorId> storages;
  Bytes total;
  for (const Placement& placement : report.placements) {
    if (placement.pool != PoolId::kHost || placement.tensor == kNoTensor) continue;
    if (compression.Keeps(placement.tensor) || !storages.insert(placement.tensor).second) continue;
    total += placement.block.size;
  }
  return total;
}

}  // namespace

AllocationPlan PlanFor(const Setup& setup, const PolicyMaker& make) {
  return PlansFor(setup, make, PackingFor(setup)).blocks;
}

Resolved ResolveAllocator(const Setup& setup, std::span<const PolicyMaker> policies) {
  SPILLWAY_CHECK(!policies.empty());
  const std::string name = NameOf(setup);
  if (name == "auto") return Choose(setup, policies);
  if (name == "planned") return {WithPlan(setup, policies.front()), 0};
  return {setup, 0};
}

Setup ResolveAllocator(const Setup& setup, const PolicyMaker& policy) {
  return ResolveAllocator(setup, std::span(&policy, 1)).setup;
}

Setup ResolveCompression(const Setup& setup, const PolicyMaker& make_policy) {
  if (!setup.compression || setup.compression->chosen) return setup;
  CompressionPlan plan = *setup.compression;
  if (!plan.density && !plan.densities) {
    if (setup.backend != kSimulator && !plan.only_hidden) return setup;
    throw UsageError(
        "compression: predictions need the densities of the feature maps: density=FILE with what "
        "--export-densities of a run on real bytes wrote, or density=0.4 for all of them");
  }
  Setup trial = setup;
  trial.compression = nullptr;
  const Outcome plain = Simulate(trial, *make_policy());
  const Trace& trace = *plain.trace;
  if (plain.report.fits()) trial.policy_plan = plain.report.plan;
  if (plan.densities) {
    std::vector<std::string> names;
    for (const Tensor& tensor : trace.tensors) names.push_back(tensor.name);
    for (const auto& [name, density] : *plan.densities) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        throw InputError(
            fmt::format("{}: {}", plan.densities_file, UnknownName("tensor", name, names)));
      }
    }
  }
  plan.chosen.emplace();
  std::vector<FeatureMap> candidates;
  if (plain.report.fits()) candidates = WorthKeeping(plan, trace, plain.report);
  for (const FeatureMap& candidate : candidates) plan.chosen->insert(candidate.name);
  const auto resolved = [&] {
    trial.compression = std::make_shared<const CompressionPlan>(plan);
    return trial;
  };
  if (!plain.report.fits()) return resolved();
  plan.baseline = plain.report.metrics.iteration;
  const auto hides = [&] {
    const Outcome outcome = Simulate(resolved(), *make_policy());
    return plan.Hides(outcome.report.metrics.iteration);
  };
  if (!plan.only_hidden || hides()) return resolved();
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const FeatureMap& a, const FeatureMap& b) { return a.density < b.density; });
  plan.chosen->clear();
  for (const FeatureMap& candidate : candidates) {
    plan.chosen->insert(candidate.name);
    if (!hides()) plan.chosen->erase(candidate.name);
  }
  return resolved();
}

Footprint FootprintOf(const Setup& setup, const Outcome& predicted) {
  const Report& report = predicted.report;
  Footprint footprint;
  footprint.device = Touched(report, PoolId::kDevice);
  for (size_t i = 0; i < kMaxPools; ++i) footprint.outside[i] = Touched(report, OutsidePool(i));
  if (setup.compression) {
    footprint.outside[NumberOf(PoolId::kHost)] =
        PinnedMemory(report, CompressionOf(*setup.compression, *predicted.trace));
  }
  return footprint;
}

Resolved Resolve(const Setup& setup, std::span<const PolicyMaker> policies) {
  Resolved resolved = ResolveAllocator(setup, policies);
  resolved.setup = ResolveCompression(resolved.setup, policies[resolved.policy]);
  return resolved;
}

Outcome Play(const Setup& setup, std::span<const PolicyMaker> policies,
             const BackendFactories& backends) {
  Resolved resolved = Resolve(setup, policies);
  const PolicyMaker& make = policies[resolved.policy];
  if (backends.Find(setup.backend).needs_footprint) {
    Outcome predicted = Simulate(resolved.setup, *make());
    if (!predicted.report.fits()) return predicted;
    resolved.setup.footprint = FootprintOf(resolved.setup, predicted);
    resolved.setup.policy_plan = predicted.report.plan;
  }
  Outcome outcome = RunPolicy(resolved.setup, *make(), backends);
  outcome.policy = resolved.policy;
  return outcome;
}

std::vector<PolicyMaker> MakersOf(const Setup& setup, const std::string& policy) {
  std::vector<PolicyMaker> makers;
  for (const auto& order : NameOf(setup) == "auto" ? OrdersOf(policy) : std::vector{policy}) {
    makers.push_back([order] { return PolicyLibrary().Make(order); });
  }
  return makers;
}

std::vector<std::string> OrdersOf(const std::string& policy) {
  return PolicyLibrary().Candidates(policy);
}

}  // namespace spillway
