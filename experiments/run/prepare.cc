#include "experiments/run/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/run/isolation.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "sim/alloc/recording_allocator.h"
#include "sim/core/check.h"
#include "sim/core/forwarding_allocator.h"
#include "sim/packing/allocation_log.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// The largest number of times that a run is planned until its plan fits.
constexpr int kAttempts = 6;
// How far above its bound a plan after the first may be, in thousandths. The value is so large that
// only the limit of the memory counts.
constexpr int64_t kAnything = 1000;
// After attempt `i`, counted from 0, the next attempt gets less memory by a further
// `i / kMargin` of the memory.
constexpr int64_t kMargin = 500;

// Returns the number of requests in the iteration that a report describes, without the blocks that
// are held from before. It equals the number of blocks given back, because the same blocks are held
// at the end of the iteration.
size_t RequestsPerIteration(const Report& report) {
  return static_cast<size_t>(std::count_if(
      report.placements.begin(), report.placements.end(),
      [](const Placement& p) { return p.on_device() && p.kind == PlacementKind::kFree; }));
}

// The offsets and the policy's plan that a run takes over from the run that was recorded for it.
struct Plans {
  AllocationPlan blocks;
  std::string policy;
};

Plans PlansFor(Draft recorded, const PackingOptions& options) {
  Bytes memory;
  std::optional<sim::Planned> arena;
  std::optional<RecordingAllocator> recorder;
  recorded.arena = recorded.arena.RecordedBy([&](Bytes capacity, Bytes alignment) {
    memory = capacity;
    Allocator& recording = recorder.emplace(arena.emplace(capacity, alignment));
    return std::make_unique<ForwardingAllocator>(recording);
  });
  const Outcome outcome = Predict(recorded);
  const bool fits = outcome.report.fits();
  return {PlanAllocations(recorder->log(), fits ? RequestsPerIteration(outcome.report) : 0, memory,
                          options),
          fits ? outcome.report.plan : std::string()};
}

PackingOptions PackingFor(const Draft& run, const AllocatorChoice::Planned& planned) {
  PackingOptions options;
  options.granularity = run.device.alignment;
  options.memory = run.memory;
  options.steps = planned.steps;
  options.tolerance = planned.tolerance;
  return options;
}

Draft PlanOffsets(const Draft& run, const AllocatorChoice::Planned& planned) {
  PackingOptions options = PackingFor(run, planned);
  Draft decided = run;
  Draft recorded = run;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Plans plans = PlansFor(recorded, options);
    const Bytes height = plans.blocks.height;
    decided.arena = Arena::Planned(run.arena.name(),
                                   std::make_shared<const AllocationPlan>(std::move(plans.blocks)));
    decided.policy_plan = std::move(plans.policy);
    if (height <= run.memory) return decided;
    recorded.memory -= height - run.memory;
    recorded.memory -= Bytes(run.memory.count() / kMargin * attempt);
    options.tolerance = kAnything;
  }
  // No plan fits into the memory, so blocks are placed as they come.
  decided.policy_plan = run.policy_plan;
  decided.arena = Arena(run.arena.name(), [](Bytes capacity, Bytes alignment) {
    return MakeAllocator("best-fit", capacity, alignment);
  });
  return decided;
}

// Returns the allocators that `auto` tries.
std::vector<AllocatorChoice> ChoicesToTry() {
  std::vector<AllocatorChoice> tried;
  for (const AllocatorInfo& info : AllocatorChoices()) {
    if (AllocatorChoice(info.name).automatic() != nullptr) continue;
    tried.emplace_back(info.name);
    if (info.name == "high-end") tried.emplace_back("high-end:reading=text");
    if (info.name == "pytorch") tried.emplace_back("pytorch:expandable_segments=true");
  }
  return tried;
}

Draft TryAll(const Case& asked, const Draft& run, bool by_time) {
  std::optional<Draft> best;
  std::pair<int64_t, int64_t> best_cost;
  const std::vector<PolicyChoice> candidates = run.policy.Candidates();
  for (const PolicyChoice& policy : candidates) {
    for (const AllocatorChoice& choice : ChoicesToTry()) {
      Case named = asked;
      named.allocator = choice;
      Draft tried = run;
      tried.policy = policy;
      tried.arena = choice.Undecided();
      tried = DecidePlacement(named, tried, {});
      const Report report = Predict(tried).report;
      if (!report.fits()) continue;
      std::pair cost(report.metrics.peak_reserved.count(), report.metrics.iteration.picoseconds());
      if (by_time) std::swap(cost.first, cost.second);
      if (best && cost >= best_cost) continue;
      best = std::move(tried);
      best->policy_plan = report.plan;
      best_cost = cost;
    }
  }
  if (best) return *std::move(best);
  Draft fallback = run;
  fallback.arena = "best-fit";
  fallback.policy = candidates.front();
  return fallback;
}

// Returns the end of the highest block that a run uses in a pool; in the device's pool at least the
// largest reserved size.
Bytes Touched(const Report& report, PoolId pool) {
  Bytes end = pool == PoolId::kDevice ? report.metrics.peak_reserved : Bytes(0);
  for (const Placement& placement : report.placements) {
    if (placement.pool == pool) end = std::max(end, placement.block.end());
  }
  return end;
}

// Returns the bytes of the host pool's blocks for storages that are not kept compressed. Each
// storage counts once.
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

// Returns the memory that a predicted run touches. REQUIRES: the predicted run fits.
Footprint FootprintOf(const Draft& run, const Outcome& predicted) {
  const Report& report = predicted.report;
  Footprint footprint;
  footprint.device = Touched(report, PoolId::kDevice);
  for (size_t i = 0; i < kMaxPools; ++i) footprint.outside[i] = Touched(report, OutsidePool(i));
  if (run.compression) {
    footprint.outside[NumberOf(PoolId::kHost)] =
        PinnedMemory(report, CompressionOf(*run.compression, *predicted.trace));
  }
  return footprint;
}

// Throws `InputError` if the densities name a tensor that the trace does not have.
void CheckDensities(const CompressionPlan& plan, const Trace& trace) {
  if (!plan.densities) return;
  std::vector<std::string> names;
  for (const Tensor& tensor : trace.tensors) names.push_back(tensor.name);
  for (const auto& [name, density] : *plan.densities) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw InputError(
          fmt::format("{}: {}", plan.densities_file, UnknownName("tensor", name, names)));
    }
  }
}

}  // namespace

AllocationPlan PlanFor(const Draft& run, const AllocatorChoice::Planned& planned) {
  return PlansFor(run, PackingFor(run, planned)).blocks;
}

Draft DecidePlacement(const Case& asked, Draft run, const BackendFactories&) {
  if (const auto* choice = asked.allocator.automatic()) return TryAll(asked, run, choice->by_time);
  if (const auto* planned = asked.allocator.planned()) return PlanOffsets(run, *planned);
  return run;
}

Draft DecideCompression(const Case& asked, Draft run, const BackendFactories&) {
  if (!asked.compress) return run;
  CompressionPlan plan(*asked.compress, run.device);
  const auto with_plan = [&] {
    Draft decided = run;
    decided.compression = std::make_shared<const CompressionPlan>(plan);
    return decided;
  };
  if (!plan.density && !plan.densities) {
    if (run.backend != kSimulator && !plan.only_hidden) return with_plan();
    throw UsageError(
        "compression: predictions need the densities of the feature maps: give density=FILE, a "
        "file that --export densities of a run on real bytes wrote, or density=0.4 for all "
        "feature maps");
  }
  const Outcome plain = Predict(run);
  const Trace& trace = *plain.trace;
  CheckDensities(plan, trace);
  plan.chosen.emplace();
  if (!plain.report.fits()) return with_plan();
  run.policy_plan = plain.report.plan;
  std::vector<FeatureMap> candidates = WorthKeeping(plan, trace, plain.report);
  for (const FeatureMap& candidate : candidates) plan.chosen->insert(candidate.name);
  plan.baseline = plain.report.metrics.iteration;
  const auto hides = [&] { return plan.Hides(Predict(with_plan()).report.metrics.iteration); };
  if (!plan.only_hidden || hides()) return with_plan();
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const FeatureMap& a, const FeatureMap& b) { return a.density < b.density; });
  plan.chosen->clear();
  for (const FeatureMap& candidate : candidates) {
    plan.chosen->insert(candidate.name);
    if (!hides()) plan.chosen->erase(candidate.name);
  }
  return with_plan();
}

Draft DecideFootprint(const Case&, Draft run, const BackendFactories& backends) {
  if (!backends.Find(run.backend).needs_footprint) return run;
  const Outcome predicted = PredictExecution(run);
  if (!predicted.report.fits()) return run.Prediction();
  run.footprint = FootprintOf(run, predicted);
  run.policy_plan = predicted.report.plan;
  return run;
}

Prepared Decide(const Case& asked, Draft run, const BackendFactories& backends) {
  for (const Pass pass : {DecidePlacement, DecideCompression, DecideFootprint}) {
    run = pass(asked, std::move(run), backends);
  }
  return Prepared(std::move(run));
}

Prepared Prepare(const Case& asked, const Inputs& inputs, const BackendFactories& backends) {
  return Decide(asked, inputs.DraftOf(asked), backends);
}

Outcome PredictExecution(const Draft& run) {
  Outcome predicted = Predict(run);
  if (!predicted.report.fits() || predicted.report.steady) return predicted;
  Draft searched = run;
  searched.policy_plan = predicted.report.plan;
  return Predict(searched, run.options.iterations);
}

Outcome RunCase(const Case& asked, const Inputs& inputs, const BackendFactories& backends) {
  if (IsIsolated(asked)) return RunIsolated(asked, inputs);
  const std::string whose = fmt::format("policy '{}'", asked.policy.name());
  try {
    Outcome outcome = Run(Prepare(asked, inputs, backends), backends);
    if (asked.check) Verify(whose, outcome);
    return outcome;
  } catch (const PolicyError& error) {
    const std::string_view text = error.what();
    if (text.starts_with("policy '")) throw;  // it names the policy already
    throw PolicyError(fmt::format("{}: {}", whose, text));
  }
}

std::optional<Bytes> FindNeededMemory(Case asked, const Inputs& inputs, Bytes lacking) {
  constexpr int kDoublings = 40, kHalvings = 5;
  const Bytes memory = inputs.MemoryOf(asked);
  if (const PolicySpec& spec = asked.policy.spec(); spec.plugin.empty() && !spec.policy.empty()) {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    const std::string fits_as = registry.Traits(spec.policy).fits_as;
    if (!fits_as.empty()) asked.policy = fits_as;
  }
  asked.backend = kSimulator;
  asked.check = false;
  bool hopeless = false;  // more memory of the device does not help
  const auto fits = [&](Bytes excess) {
    asked.memory = fmt::format("{}B", (memory + excess).count());
    const Report report = RunCase(asked, inputs).report;
    hopeless = !report.fits() && report.out_of_memory->pool != PoolId::kDevice;
    return report.fits();
  };
  Bytes below, excess = std::max(lacking, Bytes(1));
  for (int i = 0; !fits(excess); ++i) {
    if (hopeless || i == kDoublings) return std::nullopt;
    below = excess;
    excess = excess * 2;
  }
  for (int i = 0; i < kHalvings; ++i) {
    const Bytes middle((below.count() + excess.count()) / 2);
    (fits(middle) ? excess : below) = middle;
  }
  return memory + excess;
}

void Verify(const std::string& whose, const Outcome& outcome) {
  const std::vector<std::string> violations = Check(*outcome.trace, outcome.report);
  if (violations.empty()) return;
  throw PolicyError(fmt::format("{}: the checker found {} violation(s):\n  {}", whose,
                                violations.size(), fmt::join(violations, "\n  ")));
}

}  // namespace spillway::lab
