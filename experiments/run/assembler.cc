#include "experiments/run/assembler.h"

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
#include "sim/alloc/make_allocator.h"
#include "sim/engine/sim_backend.h"
#include "sim/runtime/trace_facts.h"
#include "traces/base/error.h"
#include "traces/base/sha256.h"

namespace spillway {
namespace {

// How many trial runs may be under way within one another.
constexpr int kDeepestTrial = 16;

RunBackend MakeSimulator(const BackendRequest& request) {
  // Waits are charged of inferences, whose kernels take microseconds; a training iteration would
  // change by less than 1 %, which is not what its measured times lack.
  const SimCharges charges{.driver = request.backing == Backing::kBlocks,
                           .kernel_waits = !request.setup.trace->training,
                           .growth = request.setup.options.iterations != 1};
  auto simulator =
      std::make_unique<SimBackend>(request.setup.device, *request.setup.cost, charges,
                                   request.compression ? &*request.compression : nullptr);
  RunBackend made;
  made.complete = [raw = simulator.get()](CompressionSummary& summary) {
    summary.times = raw->compression_times();
  };
  made.backend = std::move(simulator);
  return made;
}

// Where each tensor lies at the end of a placement log, the device before the pools outside.
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

// The parameters and the optimizer state that have a storage, in the order of the network: the
// parts of one stand in its place.
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

std::string DigestWeights(const Trace& trace, const Report& report, const Executor& backend) {
  const auto placements = FinalPlacements(report);
  std::vector<std::byte> contents;
  std::string bytes;
  for (const TensorId id : TrainedTensors(trace)) {
    const Placement& placement = placements.at(id);
    contents.resize(static_cast<size_t>(trace.tensor(id).size.count()));
    backend.Read(placement.block, placement.pool, contents);
    bytes.append(reinterpret_cast<const char*>(contents.data()), contents.size());
  }
  return Sha256(bytes);
}

Execution ExecutionOf(const RunBackend& made, const Trace& trace, const Report& report) {
  const Executor& executor = *made.executor;
  return {executor.loss(), executor.top1(),
          made.digest ? DigestWeights(trace, report, executor) : std::string(),
          executor.iteration_times()};
}

CompressionSummary SummaryOf(const RunBackend& made, const Setup& setup,
                             const HostCompression& compression, const Trace& trace,
                             const Report& report) {
  CompressionSummary summary = Summarize(*setup.compression, compression, trace, report);
  if (made.executor != nullptr) {
    summary.Measured(made.executor->stored(), made.executor->stored_peak());
  } else if (setup.compression->baseline) {
    summary.hides = setup.compression->Hides(report.metrics.iteration);
  }
  if (made.complete) made.complete(summary);
  return summary;
}

Setup PredictionOf(const Setup& setup) {
  Setup prediction = setup;
  prediction.backend = kSimulator;
  prediction.options.iterations = 0;
  return prediction;
}

// What a trial run of another policy gets, but for its memory. A plan is for one policy; another
// one runs as the recorded run did.
Setup TrialOf(const Setup& setup) {
  Setup trial = PredictionOf(setup);
  trial.plan = nullptr;
  trial.policy_plan.clear();
  trial.compression = nullptr;
  return trial;
}

// What a run and the trials within it share, made when the first of them needs it.
class SharedFacts {
 public:
  const TraceFacts& Of(const Setup& setup) {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = facts_.try_emplace(setup.trace);
    if (is_new) known->second = std::make_unique<TraceFacts>(*setup.trace, *setup.cost);
    return *known->second;
  }

 private:
  std::mutex mutex_;
  // Of the trace, and of one that trials have in another order.
  std::map<std::shared_ptr<const Trace>, std::unique_ptr<const TraceFacts>> facts_;
};

Outcome Assemble(Setup setup, Policy& policy, const BackendFactories& backends,
                 const ArenaMaker& given, int depth, SharedFacts& facts) {
  if (depth > kDeepestTrial) {
    throw PolicyError(
        fmt::format("Prepare: more than {} trial runs within one another; does the "
                    "policy try itself?",
                    kDeepestTrial));
  }
  setup.device.memory = setup.plan ? setup.plan->memory : setup.memory;
  const TrialRun trial([&](Policy& other, Bytes memory, const TrialOptions& options) {
    Setup tried = TrialOf(setup);
    tried.memory = memory;
    tried.options.iterations = options.iterations;
    if (options.reordered) tried.trace = options.reordered;
    if (options.link != 1) tried = WithSlowerLinks(std::move(tried), options.link);
    return Assemble(std::move(tried), other, backends, {}, depth + 1, facts).report;
  });
  Preparation prepared =
      policy.Prepare(*setup.trace, setup.device, *setup.cost, trial, setup.policy_plan);
  setup.device.memory = prepared.memory;
  Outcome outcome;
  outcome.allocator = setup.allocator;
  outcome.trace = setup.trace;
  if (prepared.trace) {
    prepared.trace->Validate();
    outcome.trace = std::make_shared<const Trace>(*std::move(prepared.trace));
  }
  const Trace& trace = *outcome.trace;
  std::unique_ptr<Allocator> own;
  if (!given) own = MakeArena(setup, setup.device.memory);
  Allocator& arena = given ? given(setup.device.memory) : *own;
  std::array<std::unique_ptr<Allocator>, kMaxPools> pools;
  for (const PoolId pool : PoolsBySpeed(setup.device)) {
    pools[NumberOf(pool)] =
        MakeAllocator("best-fit", SizeOf(setup.device, pool), setup.device.alignment);
  }
  std::optional<HostCompression> compression;
  if (setup.compression) compression = CompressionOf(*setup.compression, trace);
  const RunBackend made =
      backends.Find(setup.backend).make({setup, trace, arena.backing(), compression});
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &setup.device;
  parts.cost = setup.cost.get();
  parts.arena = &arena;
  for (size_t i = 0; i < kMaxPools; ++i) parts.pools[i] = pools[i].get();
  parts.backend = made.backend.get();
  parts.policy = &policy;
  Report& report = outcome.report;
  report = outcome.trace == setup.trace ? Run(parts, facts.Of(setup), setup.options)
                                        : Run(parts, setup.options);
  if (report.plan.empty()) report.plan = std::move(prepared.plan);
  if (!report.fits()) return outcome;
  if (compression) {
    outcome.compression = SummaryOf(made, setup, *compression, trace, report);
    report.pinning = setup.device.host_malloc.At(outcome.compression->pinned_peak);
  }
  if (made.executor != nullptr) outcome.execution = ExecutionOf(made, trace, report);
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

Outcome RunPolicy(const Setup& setup, Policy& policy, const BackendFactories& backends,
                  const ArenaMaker& arena) {
  SharedFacts facts;
  return Assemble(setup, policy, backends, arena, 0, facts);
}

Outcome Simulate(const Setup& setup, Policy& policy, const ArenaMaker& arena) {
  SharedFacts facts;
  return Assemble(PredictionOf(setup), policy, {}, arena, 0, facts);
}

}  // namespace spillway
