#include "experiments/run/run.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/other_links.h"
#include "policies/recorded/step_executor.h"
#include "sim/alloc/make_allocator.h"
#include "sim/engine/sim_backend.h"
#include "sim/runtime/runtime.h"
#include "sim/runtime/trace_facts.h"
#include "traces/base/error.h"
#include "traces/base/sha256.h"

namespace spillway::lab {
namespace {

// The largest depth of trial runs that are nested in one another.
constexpr int kDeepestTrial = 16;

RunBackend MakeSimulator(const BackendRequest& request) {
  // Waits of kernels are charged only in inferences, whose kernels take microseconds. In training
  // they would change an iteration by less than 1 %, and would not explain the difference from
  // measured times.
  const SimCharges charges{.driver = request.backing == Backing::kBlocks,
                           .kernel_waits = !request.run.trace->training,
                           .growth = request.run.options.iterations != 1};
  auto simulator =
      std::make_unique<SimBackend>(request.run.device, *request.run.cost, charges,
                                   request.compression ? &*request.compression : nullptr);
  RunBackend made;
  made.complete = [raw = simulator.get()](CompressionSummary& summary) {
    summary.times = raw->compression_times();
  };
  made.backend = std::move(simulator);
  return made;
}

// Returns where each tensor lies at the end of a placement log. For a tensor that is on the device
// and in a pool outside, that is the place on the device.
std::map<TensorId, Placement> FinalPlacements(const Report& report) {
  std::map<TensorId, Placement> device, outside;
  for (const Placement& placement : report.placements) {
    if (placement.tensor == kNoTensor) continue;
    auto& held = placement.on_device() ? device : outside;
    const bool taken =
        placement.kind == PlacementKind::kAllocate || placement.kind == PlacementKind::kEnter;
    if (taken) {
      held[placement.tensor] = placement;
    } else {
      held.erase(placement.tensor);
    }
  }
  device.merge(outside);
  return device;
}

// Returns the parameters and the optimizer state that have a storage, in the order of the trace. If
// a tensor has parts, they replace it.
std::vector<TensorId> TrainedTensors(const Trace& trace) {
  std::map<std::pair<TensorId, Bytes>, TensorId> parts;  // by whole and offset
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    if (tensor.part_of) parts.insert({{*tensor.part_of, tensor.offset}, static_cast<TensorId>(i)});
  }
  std::vector<TensorId> trained;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    const auto id = static_cast<TensorId>(i);
    const bool persistent =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    if (!persistent || tensor.alias_of || tensor.part_of) continue;
    const size_t before = trained.size();
    for (auto at = parts.lower_bound({id, Bytes(0)}); at != parts.end() && at->first.first == id;) {
      trained.push_back((at++)->second);
    }
    if (trained.size() == before) trained.push_back(id);
  }
  return trained;
}

// Returns the contents of `TrainedTensors`, one behind the other.
std::string ReadWeights(const Trace& trace, const Report& report, const Executor& backend) {
  const auto placements = FinalPlacements(report);
  std::vector<std::byte> contents;
  std::string bytes;
  for (const TensorId id : TrainedTensors(trace)) {
    const Placement& placement = placements.at(id);
    contents.resize(static_cast<size_t>(trace.tensor(id).size.count()));
    backend.Read(placement.block, placement.pool, contents);
    bytes.append(reinterpret_cast<const char*>(contents.data()), contents.size());
  }
  return bytes;
}

Execution ExecutionOf(const RunBackend& made, const Trace& trace, const Report& report) {
  const Executor& executor = *made.executor;
  Execution execution{executor.loss(), executor.top1(), {}, executor.iteration_times(), {}};
  if (!made.digest && !made.keep_weights) return execution;
  std::string weights = ReadWeights(trace, report, executor);
  if (made.digest) execution.weights_digest = Sha256(weights);
  if (made.keep_weights) execution.weights = std::move(weights);
  return execution;
}

CompressionSummary SummaryOf(const RunBackend& made, const Draft& run,
                             const HostCompression& compression, const Trace& trace,
                             const Report& report) {
  CompressionSummary summary = Summarize(*run.compression, compression, trace, report);
  if (made.executor != nullptr) {
    summary.Measured(made.executor->stored(), made.executor->stored_peak());
  } else if (run.compression->baseline) {
    summary.hides = run.compression->Hides(report.metrics.iteration);
  }
  if (made.complete) made.complete(summary);
  return summary;
}

// Returns the run that a trial of another policy gets; the caller sets its memory. The planned
// offsets and the policy's plan are removed, because they are only for the policy of this run.
Draft TrialOf(const Draft& run) {
  Draft trial = run.Prediction();
  trial.arena = run.arena.ForTrials();
  trial.policy_plan.clear();
  trial.compression = nullptr;
  return trial;
}

// Facts about traces that a run and the trials within it share. The facts of a trace are computed
// when a run first needs them. Thread-safe.
class SharedFacts {
 public:
  const TraceFacts& Of(const Draft& run) {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = facts_.try_emplace(run.trace);
    if (is_new) known->second = std::make_unique<TraceFacts>(*run.trace, *run.cost);
    return *known->second;
  }

 private:
  std::mutex mutex_;
  // The facts by trace: the trace of the run, and reordered traces of trials.
  std::map<std::shared_ptr<const Trace>, std::unique_ptr<const TraceFacts>> facts_;
};

Outcome RunPolicy(Draft run, Policy& policy, const BackendFactories& backends, int depth,
                  SharedFacts& facts);

// Calls `Policy::Prepare` with trial runs that are simulated, and gives the run's device the memory
// of the run.
Preparation PreparationOf(Draft& run, Policy& policy, const BackendFactories& backends, int depth,
                          SharedFacts& facts) {
  if (depth > kDeepestTrial) {
    throw PolicyError(
        fmt::format("Prepare: more than {} trial runs within one another; does the "
                    "policy try itself?",
                    kDeepestTrial));
  }
  run.device.memory = run.arena.MemoryOf(run.memory);
  const TrialRun trial([&](Policy& other, Bytes memory, const TrialOptions& options) {
    Draft tried = TrialOf(run);
    tried.memory = memory;
    tried.options.iterations = options.iterations;
    if (options.reordered) tried.trace = options.reordered;
    if (options.link != 1) tried = WithSlowerLinks(std::move(tried), options.link);
    return RunPolicy(std::move(tried), other, backends, depth + 1, facts).report;
  });
  return policy.Prepare(*run.trace, run.device, *run.cost, trial, run.policy_plan);
}

Outcome RunPolicy(Draft run, Policy& policy, const BackendFactories& backends, int depth,
                  SharedFacts& facts) {
  Preparation preparation = PreparationOf(run, policy, backends, depth, facts);
  run.device.memory = preparation.memory;
  Outcome outcome;
  outcome.trace = run.trace;
  if (preparation.trace) {
    if (run.trace->hooks) throw PolicyError("a recorded program runs its own ops, in its order");
    preparation.trace->Validate();
    outcome.trace = std::make_shared<const Trace>(*std::move(preparation.trace));
  }
  const Trace& trace = *outcome.trace;
  const auto arena = run.arena.Make(run.device.memory, run.device.alignment);
  std::array<std::unique_ptr<Allocator>, kMaxPools> pools;
  for (const PoolId pool : PoolsBySpeed(run.device)) {
    pools[NumberOf(pool)] =
        MakeAllocator("best-fit", SizeOf(run.device, pool), run.device.alignment);
  }
  std::optional<HostCompression> compression;
  if (run.compression) compression = CompressionOf(*run.compression, trace);
  const RunBackend made =
      backends.Find(run.backend).make({run, trace, arena->backing(), compression});
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &run.device;
  parts.cost = run.cost.get();
  parts.arena = arena.get();
  for (size_t i = 0; i < kMaxPools; ++i) parts.pools[i] = pools[i].get();
  parts.backend = made.backend.get();
  parts.policy = &policy;
  Report& report = outcome.report;
  report =
      outcome.trace == run.trace ? Run(parts, facts.Of(run), run.options) : Run(parts, run.options);
  if (report.plan.empty()) report.plan = std::move(preparation.plan);
  if (!report.fits()) return outcome;
  if (compression) {
    outcome.compression = SummaryOf(made, run, *compression, trace, report);
    report.pinning = run.device.host_malloc.At(outcome.compression->pinned_peak);
  }
  if (made.executor != nullptr) outcome.execution = ExecutionOf(made, trace, report);
  return outcome;
}

Outcome RunOnce(const Draft& run, const BackendFactories& backends) {
  SharedFacts facts;
  std::unique_ptr<Policy> policy = run.policy.Make();
  if (run.trace->hooks) policy = CarriedOut(std::move(policy));
  Outcome outcome = RunPolicy(run, *policy, backends, 0, facts);
  outcome.allocator = run.arena.name();
  outcome.policy = run.policy;
  return outcome;
}

}  // namespace

BackendFactories::BackendFactories() { Add(kSimulator, {MakeSimulator}); }

void BackendFactories::Add(const std::string& name, BackendFactory factory) {
  factories_.insert_or_assign(name, std::move(factory));
}

const BackendFactory& BackendFactories::Find(const std::string& name) const {
  if (const auto found = factories_.find(name); found != factories_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, factory] : factories_) names.push_back(known);
  throw UsageError(UnknownName("backend", name, names));
}

std::optional<Trace> RewrittenTrace(const Draft& run) {
  SharedFacts facts;
  Draft prediction = run.Prediction();
  return PreparationOf(prediction, *run.policy.Make(), {}, 0, facts).trace;
}

Outcome Run(const Prepared& prepared, const BackendFactories& backends) {
  return RunOnce(prepared.run, backends);
}

Outcome Predict(const Draft& run, int iterations) {
  Draft prediction = run.Prediction();
  prediction.options.iterations = iterations;
  return RunOnce(prediction, {});
}

}  // namespace spillway::lab
