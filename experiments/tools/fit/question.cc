#include "experiments/tools/fit/question.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "experiments/changes/autocast_step.h"
#include "experiments/changes/changed_op.h"
#include "experiments/changes/changed_step.h"
#include "experiments/changes/compiled_step.h"
#include "experiments/changes/loss_in_chunks.h"
#include "experiments/changes/other_optimizer.h"
#include "experiments/changes/other_sharding.h"
#include "experiments/changes/planned_step.h"
#include "experiments/changes/shards.h"
#include "experiments/tools/fit/first_iterations.h"
#include "experiments/tools/plan/step_weights.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/blocks.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

constexpr const char* kAllocators[] = {"pytorch", "pytorch:expandable_segments=true", "stitched"};
// The optimizer allocates its state in the first iteration. After two more iterations the placement
// of blocks no longer changes.
constexpr int kFirstIterations = 3;
// With as many parts of the tokens, logits no longer make the peak of most models.
constexpr int64_t kLossChunks = 8;

// A plan whose blocks find no place is made again, at most so often, for a memory that is less by
// one part in so many.
constexpr int kAttempts = 4;
constexpr int64_t kLessBy = 64;
constexpr const char* kStreamed = "joint:effort=1,updates=late,outside=all";

const char* TextOf(FitAllocator allocator) { return kAllocators[static_cast<size_t>(allocator)]; }

// Returns the policy that runs the workload unchanged.
std::string PolicyOf(const Trace& trace) { return trace.recording ? "as-recorded" : "liveness"; }

// Returns the number of rows that the step looks up in the table for which that is most, which are
// the tokens of a language model; 0 if it looks up none.
int64_t TokensOf(const Trace& trace) {
  std::map<double, double> rows;  // by the elements of the table
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::kForward) continue;
    if (op.type == OpType::kEmbedding) rows[0] += op.NumberAttribute("rows");
    if (OperatorOf(op) == "aten::embedding") {
      rows[op.FindAttribute("elements").value_or(0)] += op.FindAttribute("indices").value_or(0);
    }
  }
  double most = 0;
  for (const auto& [table, count] : rows) most = std::max(most, count);
  return std::llround(most);
}

// Returns the trace of the network of the case at another batch, or length. Throws `InputError` if
// the batch is larger than that of any workload.
BatchTrace Lowered(Case asked, const Workload& workload) {
  if (workload.batch > kLargestBatch) {
    throw InputError(fmt::format("a batch has at most {} samples", kLargestBatch));
  }
  asked.workload = workload.Name();
  return {std::make_shared<const Trace>(LoadTrace(asked)), BatchSource::kLowered};
}

// Returns a network of the program with its loss in chunks; nullopt if it has no loss of each
// token, or has it in chunks.
std::optional<BatchTrace> LoweredWithLossInChunks(const Question& one) {
  Case asked = one.loaded().asked;
  if (IsTraceFile(asked.workload) || asked.loss_chunks) return std::nullopt;
  asked.loss_chunks = kLossChunks;
  try {
    BatchTrace made =
        Lowered(asked, {one.trace().network, one.trace().batch / asked.accumulate.value_or(1)});
    made.source = one.workload().batch_source;
    return made;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace

BatchTrace AtBatch(const FitWorkload& workload,
                   std::span<const std::shared_ptr<const Trace>> others, int64_t batch) {
  const Case& asked = workload.asked;
  const int64_t passes = asked.accumulate.value_or(1);
  if (batch == workload.given->batch || IsTraceFile(asked.workload) || batch % passes != 0) {
    return AtBatch(workload.given, others, batch);
  }
  return Lowered(asked, {ParseWorkload(asked.workload).network, batch / passes});
}

StepFamily FamilyOfNetwork(StepQuantity quantity, const FitWorkload& workload) {
  if (quantity == StepQuantity::kBatch) {
    return {quantity, workload.given->batch,
            [workload](int64_t batch) { return AtBatch(workload, {}, batch); }};
  }
  const Workload given = ParseWorkload(workload.asked.workload);
  return {quantity, LengthOf(given.network), [workload, given](int64_t length) {
            return Lowered(workload.asked, {WithLength(given.network, length), given.batch});
          }};
}

Question::Question(const FitWorkload& workload, const std::string& device, Bytes outside)
    : workload_(workload), loaded_{workload.asked, nullptr} {
  const Trace& trace = *workload.trace;
  Case& asked = loaded_.asked;
  // A process of its own would load the trace that was given.
  asked.in_process = asked.in_process || workload.trace != workload.given;
  asked.device = device;
  asked.allocator = TextOf(FitAllocator::kUsual);
  asked.policy = PolicyOf(trace);
  loaded_.inputs = std::make_shared<const Inputs>(asked, workload.trace);
  row_.workload = workload.name;
  row_.network = trace.network;
  row_.batch = trace.batch;
  row_.world = WorldOf(trace);
  row_.tokens = TokensOf(trace);
  row_.batch_source = workload.batch_source;
  row_.arithmetic = cost().ArithmeticFor(trace);
  row_.cost = cost().Provenance();
  row_.leaves_recorded = workload.leaves_recorded;
  row_.lacks_links = LacksLinks(this->device(), trace);
  if (trace.recording) row_.recorded_reserved = trace.recording->reserved;
  row_.device = this->device().name;
  row_.memory = this->device().memory;
  row_.outside = outside;
  if (row_.outside >= row_.memory) {
    throw UsageError(fmt::format("outside: {} leaves nothing of the {} of memory of '{}'",
                                 FormatBytes(row_.outside), FormatBytes(row_.memory), device));
  }
}

Question Question::About(const BatchTrace& at) const {
  FitWorkload other = workload_;
  other.trace = WithoutEarlierSteps(at.trace);
  other.batch_source = at.source;
  return {other, loaded_.asked.device, row_.outside};
}

Question Question::About(Trace trace) const {
  return About({std::make_shared<const Trace>(std::move(trace)), workload_.batch_source});
}

FitRow Question::Try(const std::string& change, const PolicyChoice& policy,
                     FitAllocator allocator) const {
  const RunResult result =
      RunIn(fmt::format("{}B", row_.available().count()), policy, allocator, {});
  FitRow row = row_;
  row.change = change;
  row.policy = policy.name();
  row.allocator = TextOf(allocator);
  row.metrics = result.report.metrics;
  row.status = result.fits()            ? FitStatus::kFits
               : result.failure.empty() ? FitStatus::kNot
                                        : FitStatus::kFailed;
  if (!result.fits()) row.reason = result.Reason();
  return row;
}

FitRow Question::AsItIs() const {
  FitRow row = Predict("none", PolicyOf(trace()), FitAllocator::kUsual);
  Case asked = loaded_.asked;
  asked.memory = "unlimited";
  row.host_range = HostRangeOf(asked, loaded_.inputs->DraftOf(asked));
  return row;
}

FitRow Question::Remedied(const PyTorchRemedy& remedy) const {
  const PolicyChoice policy = remedy.policy.empty() ? PolicyOf(trace()) : remedy.policy;
  const PyTorchRemedy expandable = ExpandableSegments();
  const bool expands = remedy.python.starts_with(expandable.python);
  FitRow row =
      Predict(remedy.change, policy, expands ? FitAllocator::kExpandable : FitAllocator::kUsual);
  row.remedy = remedy.text;
  row.python = remedy.python;
  row.peak = {};
  if (expands || row.status != FitStatus::kNot) return row;
  FitRow other = Predict(remedy.change, policy, FitAllocator::kExpandable);
  if (other.status == FitStatus::kNot) return row;
  other.peak = {};
  other.remedy =
      remedy.text.empty() ? expandable.text : fmt::format("{}, {}", remedy.text, expandable.text);
  other.python = remedy.python.empty() ? expandable.python
                                       : fmt::format("{}\n{}", remedy.python, expandable.python);
  return other;
}

// Returns the result of a run in the available memory, with the metrics of a run in unlimited
// memory, and its memory peak.
FitRow Question::Predict(const std::string& change, const PolicyChoice& policy,
                         FitAllocator allocator) const {
  FitRow row = Try(change, policy, allocator);
  std::shared_ptr<const Trace> ran;
  const RunResult unlimited = RunIn("unlimited", policy, allocator, [&](const Outcome& outcome) {
    ran = outcome.trace;
    row.peak = FindPeak(*outcome.trace, outcome.report);
  });
  if (!unlimited.fits()) throw PolicyError(unlimited.Reason());
  row.metrics = unlimited.report.metrics;
  if (ran->recording) BeginAsRecorded(ran, policy, allocator, row);
  if (row.status == FitStatus::kFits && row.metrics.peak_reserved > row.available()) {
    row.status = FitStatus::kReclaims;
  }
  return row;
}

// Sets the peak of reserved memory of `row` to that of the first iterations, and its status if they
// do not fit. A policy that changes what the recorded program allocates may reserve more later.
// `trace` is the trace that ran.
void Question::BeginAsRecorded(const std::shared_ptr<const Trace>& trace,
                               const PolicyChoice& policy, FitAllocator allocator,
                               FitRow& row) const {
  const AllocationLog log = RequestsOfFirst(*trace, kFirstIterations);
  const auto replay_of = [&](const AllocationLog& requests, Bytes capacity, Bytes& reserved) {
    const auto made = MakeAllocator(TextOf(allocator), capacity, device().alignment);
    const auto failure = Replay(requests, *made);
    reserved = made->Stats().reserved;
    return failure;
  };
  const auto replay = [&](Bytes capacity, Bytes& reserved) {
    return replay_of(log, capacity, reserved);
  };
  Bytes reserved;
  const AllocationLog construction = RequestsOfFirst(*WithoutEarlierSteps(trace), 0);
  if (replay_of(construction, row.available(), reserved)) {
    replay_of(construction, Bytes::Unlimited(), row.construction);
    row.status = FitStatus::kNot;
    row.reason = fmt::format(
        "its construction, before the first step, takes {} at once, of {} that there are",
        FormatBytes(row.construction), FormatBytes(row.available()));
  }
  replay(Bytes::Unlimited(), reserved);
  row.metrics.peak_reserved =
      policy.name() == PolicyOf(*trace) ? reserved : std::max(row.metrics.peak_reserved, reserved);
  if (row.status == FitStatus::kNot) return;
  if (const auto failure = replay(row.available(), reserved)) {
    row.status = FitStatus::kNot;
    row.reason =
        fmt::format("in its first {} iterations a request of {} finds no block: {} of {} are taken",
                    kFirstIterations, FormatBytes(failure->wanted), FormatBytes(reserved),
                    FormatBytes(row.available()));
  }
}

RunResult Question::RunIn(const std::string& memory, const PolicyChoice& policy,
                          FitAllocator allocator,
                          const std::function<void(const Outcome&)>& look) const {
  Case asked = loaded_.asked;
  asked.allocator = TextOf(allocator);
  asked.memory = memory;
  asked.policy = policy;
  return RunForRow(asked, *loaded_.inputs, look, Certificate::kNone);
}

std::vector<StepChange> ChangesOfNumbers() {
  const auto has_bf16 = [](const Question& one) {
    return one.device().matrix_flops_per_second.contains(Arithmetic::kBf16);
  };
  return {{Bfloat16(), false,
           [=](const Question& one, std::string& why_not) -> std::optional<Trace> {
             if (!has_bf16(one)) return std::nullopt;
             std::optional<Trace> made = InBfloat16(one.trace(), one.device(), one.cost());
             if (!made || !HasUnfusedAttention(one.trace())) return made;
             why_not = fmt::format("Weights in bf16 were not tried: {}.", kUnfusedAttention);
             return std::nullopt;
           }},
          {AutocastToBfloat16(), false,
           [=](const Question& one, std::string& why_not) -> std::optional<Trace> {
             if (!has_bf16(one)) return std::nullopt;
             return UnderAutocast(one.trace(), one.device(), one.cost(), why_not);
           }}};
}

std::vector<StepChange> ChangesOfSharding() {
  return {{ReshardAfterForward(), true,
           [](const Question& one, std::string& why_not) -> std::optional<Trace> {
             std::optional<Trace> made = WithReshardAfterForward(one.trace(), why_not);
             if (!why_not.empty()) {
               why_not = fmt::format("Resharding after forward was not tried: {}.", why_not);
             }
             return made;
           }},
          {ReduceInBfloat16(), false,
           [](const Question& one, std::string& why_not) -> std::optional<Trace> {
             std::optional<Trace> made = WithBfloat16Reduction(one.trace(), one.device(), why_not);
             if (!why_not.empty()) {
               why_not = fmt::format("Gradients in bf16 were not tried: {}.", why_not);
             }
             return made;
           }}};
}

// Returns the step if the host has room for what it keeps there.
std::optional<Trace> OnHost(std::optional<OffloadedStep> made, const char* what,
                            const Device& device, std::string& why_not) {
  if (!made) return std::nullopt;
  if (made->host <= device.host_memory) return std::move(made->trace);
  why_not = fmt::format("{} needs {} of host memory, of which {} has {}.", what,
                        FormatBytes(made->host), device.name, FormatBytes(device.host_memory));
  return std::nullopt;
}

std::vector<StepChange> ChangesOfOptimizer(const Device& device) {
  return {
      {EightBitOptimizer(), false,
       [](const Question& one, std::string& why_not) -> std::optional<Trace> {
         std::optional<Trace> made = With8BitOptimizer(one.trace(), one.device());
         if (!made) {
           why_not =
               "An 8-bit and an offloaded optimizer were not tried: the recorded update does not "
               "hold two moments for each parameter, as that of Adam does.";
         }
         return made;
       }},
      {OffloadedOptimizer(device.host_update), true, [](const Question& one, std::string& why_not) {
         return OnHost(WithOffloadedOptimizer(one.costed_trace(), one.device(), one.cost()),
                       "An offloaded optimizer", one.device(), why_not);
       }}};
}

std::vector<StepChange> ChangesOfLoss() {
  return {{LossInChunks(kLossChunks), true, [](const Question& one, std::string&) {
             return WithLossInChunks(one.trace(), one.device(), kLossChunks);
           }}};
}

std::vector<FixedChange> FixedChanges(const Question& asked) {
  const Trace& trace = asked.trace();
  using Row = std::optional<FitRow>;
  const auto not_tried = [](const char* sentence) -> FixedChange {
    return [sentence](const Question&, std::string& why_not) -> Row {
      why_not = sentence;
      return std::nullopt;
    };
  };
  const auto remedy = [](const PyTorchRemedy& made) -> FixedChange {
    return [made](const Question& one, std::string&) -> Row { return one.Remedied(made); };
  };
  std::vector<FixedChange> changes{remedy(ExpandableSegments())};
  const auto add = [&](const std::vector<StepChange>& others) {
    for (const StepChange& change : others) {
      changes.emplace_back([change](const Question& one, std::string& why_not) -> Row {
        std::optional<Trace> made = change.make(one, why_not);
        if (!made) return std::nullopt;
        return one.About(*std::move(made)).Remedied(change.remedy);
      });
    }
  };
  if (!trace.recording) {
    if (trace.training) {
      changes.emplace_back([](const Question& one, std::string&) -> Row {
        const std::optional<BatchTrace> made = LoweredWithLossInChunks(one);
        if (!made) return std::nullopt;
        return one.About(*made).Remedied(LossInChunks(kLossChunks));
      });
    }
    changes.push_back(not_tried(
        "Checkpoints, save_on_cpu, micro-batches, bf16 and other optimizers are predicted for "
        "steps that were recorded from PyTorch, by spillway_torch without a GPU, or by a profiler: "
        "see spillway trace import."));
    return changes;
  }
  add(ChangesOfSharding());
  add(ChangesOfNumbers());
  if (!trace.training) return changes;
  changes.push_back(remedy(SaveTensorsOnCpu()));
  if (const std::vector<std::string> blocks = BlocksInOrder(trace); !blocks.empty()) {
    changes.push_back(remedy(SelectiveCheckpoint(blocks, trace)));
    const auto is_batch_norm = [](const Op& op) {
      return op.type == OpType::kBatchNorm ||
             OperatorOf(op).find("batch_norm") != std::string::npos;
    };
    if (std::ranges::any_of(trace.ops, is_batch_norm)) {
      changes.push_back(not_tried(
          "Checkpoints run batch normalization twice, so that its running statistics move "
          "twice in a step; with the momentum 1 - sqrt(1 - momentum) they stay the same."));
    }
  } else {
    changes.push_back(
        not_tried("Checkpoints were not tried: the recording does not name the model's blocks. "
                  "Record it with model=..., see python3 -m spillway_torch."));
  }
  add(ChangesOfOptimizer(asked.device()));
  add(ChangesOfLoss());
  if (trace.compiled.empty() && asked.IsAsGiven() && WorldOf(trace) == 1) {
    changes.push_back(not_tried(
        "torch.compile was not tried: python3 -m spillway_torch explain FILE.py --compile "
        "--export-step step.json records a step with what it takes compiled."));
  }
  return changes;
}

namespace {

// A step as `spillway_torch.fit` may run it.
struct SpillwayStep {
  Trace trace;
  PyTorchRemedy remedy, with_trained;  // without trained weights on the host, and with them
  bool all_state = false;              // that can be on the host is there
};

Bytes ParametersOf(const Trace& trace) {
  Bytes parameters;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind == TensorKind::kParameter && !tensor.alias_of) parameters += tensor.size;
  }
  return parameters;
}

// Returns the steps that differ in when parameters are updated, and in how much of the state of
// late updates is on the host, for each of which a plan is made.
std::vector<SpillwayStep> StepsOfSpillway(const Question& one, Bytes budget, bool chunks) {
  const Trace trace = WithHooks(one.costed_trace());
  const bool weights = !WeightsIn(trace).frozen.empty(), larger = ParametersOf(trace) > budget;
  std::vector<SpillwayStep> steps;
  const auto add = [&](std::optional<Trace> made, bool has_state, bool early) {
    if (made && chunks) made = WithLossInChunks(*made, one.device(), kLossChunks);
    if (!made) return;
    const HostedTensors host{has_state, weights, false, weights && larger};
    const HostedTensors trained{has_state, weights, true, larger};
    steps.push_back({WithHolds(*std::move(made)), BySpillway(budget, host, early, chunks),
                     BySpillway(budget, trained, early, chunks), has_state && !early});
  };
  add(WithUpdatesInParts(trace, one.cost(), true), true, true);
  if (!steps.empty()) return steps;
  add(trace, false, false);
  for (const int64_t eighths : {2, 4, 6, 8}) {
    add(WithUpdatesInParts(trace, one.cost(), false, eighths), true, false);
  }
  return steps;
}

// Returns the bytes of the weights and of the state that a plan has on the host.
Bytes OnHost(const StepWithWeights& found) {
  Bytes bytes = found.outside;
  for (const TensorId id : found.planned.plan.state) {
    bytes += found.planner->trace().tensor(id).size;
  }
  return bytes;
}

// Returns the plan of the step in the memory that is there, and its row, which does not fit if none
// was found.
std::pair<StepWithWeights, FitRow> Planned(const Question& one, const SpillwayStep& step,
                                           FitRow row) {
  const Question about = one.About(step.trace);
  Case asked = about.loaded().asked;
  asked.policy = "joint";
  StepWithWeights found;
  Bytes memory = row.available();
  row.status = FitStatus::kNot;
  // Blocks may leave holes, which expandable segments close before there is no room.
  for (int i = 0; i < kAttempts && row.status != FitStatus::kFits; ++i) {
    found = PlanWithWeights(asked, about.costed_trace(), memory, step.all_state);
    if (!found.planned.fits() || OnHost(found) > one.device().host_memory) break;
    const Question planned = about.About(found.planner->trace());
    const PolicyChoice policy = found.planner->Following(found.planned.plan);
    for (const FitAllocator allocator : {FitAllocator::kExpandable, FitAllocator::kPages}) {
      if (row.status != FitStatus::kFits) row = planned.Try("spillway", policy, allocator);
    }
    memory -= Bytes(memory.count() / kLessBy);
  }
  const PyTorchRemedy& remedy = found.trained ? step.with_trained : step.remedy;
  row.remedy = remedy.text;
  row.python = remedy.python;
  return {std::move(found), std::move(row)};
}

}  // namespace

std::vector<FitRow> BySpillway(const Question& one, const FitRow& as_it_is) {
  const Trace& trace = one.trace();
  if (!trace.recording || trace.hooks || !trace.training) return {};
  std::vector<FitRow> fastest;  // each faster than the one before
  FitRow least = as_it_is;      // the step with the lowest floor
  least.peak = {};
  least.change.clear();
  Bytes on_host;  // of that step
  Trace smallest;
  const auto try_all = [&](bool chunks) {
    std::optional<FitRow> best;
    for (const SpillwayStep& step : StepsOfSpillway(one, as_it_is.available(), chunks)) {
      auto [found, row] = Planned(one, step, as_it_is);
      const Bytes floor = std::max(found.planned.best, found.planner->floor().size);
      if (row.status == FitStatus::kFits) {
        if (!best || row.metrics.iteration < best->metrics.iteration) best = std::move(row);
      } else if (least.change.empty() || floor < least.metrics.peak_reserved) {
        least.change = step.remedy.change;
        least.remedy = row.remedy;
        least.python = row.python;
        least.metrics.peak_reserved = floor;
        on_host = OnHost(found);
        smallest = step.trace;
      }
    }
    if (!best) return;
    if (fastest.empty() || best->metrics.iteration < fastest.back().metrics.iteration) {
      fastest.push_back(*std::move(best));
    }
  };
  try_all(false);
  // Chunks are not tried if they cannot make it faster by much.
  const Duration unchanged = as_it_is.metrics.iteration;
  if (fastest.empty() || (fastest[0].metrics.iteration - unchanged) * 10 > unchanged) try_all(true);
  if (!fastest.empty()) return fastest;
  if (least.change.empty()) return {};
  least.reason =
      fmt::format("at least {} are needed at once, {} of them parameters, and {} are there",
                  FormatBytes(least.metrics.peak_reserved), FormatBytes(ParametersOf(trace)),
                  FormatBytes(as_it_is.available()));
  if (least.metrics.peak_reserved <= as_it_is.available() && on_host > one.device().host_memory) {
    least.reason = fmt::format("{} of state and weights have to be on the host, which has {}",
                               FormatBytes(on_host), FormatBytes(one.device().host_memory));
  }
  smallest.hooks.reset();
  const FitRow streamed =
      one.About(std::move(smallest)).Try("weights streamed", kStreamed, FitAllocator::kExpandable);
  std::vector<FitRow> rows{std::move(least)};
  if (streamed.status == FitStatus::kFits) rows.push_back(streamed);
  return rows;
}

std::vector<FitRow> ByCompiling(const Question& one, const FitRow& as_it_is) {
  const Trace& trace = one.costed_trace();
  if (!one.IsAsGiven() || WorldOf(trace) > 1) return {};
  std::vector<FitRow> rows;
  for (const CompiledCut& cut : trace.compiled) {
    std::optional<Trace> made = Compiled(trace, cut, one.cost());
    if (!made) return {};
    const bool own = rows.empty();
    FitRow row =
        one.About(*std::move(made)).Remedied(own ? Compile() : CompileWithin(as_it_is.available()));
    row.cost = fmt::format("estimated from the step without torch.compile: {}", as_it_is.cost);
    row.arithmetic = as_it_is.arithmetic;
    row.tokens = as_it_is.tokens;
    if (own && row.status != FitStatus::kNot) return {row};
    const auto better = [](const FitRow& a, const FitRow& b) {
      const bool fits = a.status != FitStatus::kNot;
      if (fits != (b.status != FitStatus::kNot)) return fits;
      return fits ? a.metrics.iteration < b.metrics.iteration
                  : a.metrics.peak_reserved < b.metrics.peak_reserved;
    };
    if (rows.size() < 2) {
      rows.push_back(std::move(row));
    } else if (better(row, rows[1])) {
      rows[1] = std::move(row);
    }
  }
  return rows;
}

std::optional<FitRow> Accumulated(const Question& one, const BatchTrace& part) {
  std::optional<Trace> two = InMicroBatches(one.trace(), *part.trace, one.device(), 2);
  if (!two) return std::nullopt;
  const Question passes = one.About(part);
  const int64_t count = one.trace().batch / part.trace->batch;
  FitRow row = passes.About(*std::move(two)).Remedied(MicroBatches(one.trace().batch, count));
  if (count > 2) {
    const Duration later = row.metrics.iteration - passes.AsItIs().metrics.iteration;
    row.metrics.iteration += later * (count - 2);
  }
  return row;
}

}  // namespace spillway::lab
