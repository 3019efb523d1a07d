#include "experiments/tools/plan/step_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "experiments/run/run.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/parts/in_parallel.h"
#include "policies/plan/early_updates.h"
#include "policies/recorded/step_executor.h"
#include "policies/recorded/step_search.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// One part in so many of a GPU's budget is left free.
constexpr int64_t kMargin = 400;
// The shares of the way from the floor to the memory without a plan, in hundredths, for which a
// curve has plans. Time falls fastest near the floor.
constexpr std::array<int64_t, 6> kShares{2, 7, 20, 40, 70, 100};
// A policy other than the default plans for so many budgets between the floor and the memory
// without a plan, whatever budget is asked for; they lie closer near the floor.
constexpr int64_t kLevels = 12;
// The search of the default policy makes about so many trials of single ops, but no more for each
// storage that autograd saves than this. A trial of 1,000 ops takes 2 ms.
constexpr int64_t kTrialsOfOps = 800'000;
constexpr int64_t kTrialsOfStorage = 10;
// A plan in less memory is one in more: where none is found, it is searched for in so many
// memories, each smaller than the one before by one part in so many.
constexpr int kLess = 4;
constexpr int64_t kLessBy = 128;
// So many shares of the optimizer state are tried on the host.
constexpr int64_t kStateShares = 8;
// So often the rest of a plan gets less memory, because state needs more than was known.
constexpr int kStateAttempts = 3;
constexpr std::string_view kDefault = "joint";

bool MayMove(const Trace& trace, const Liveness& liveness, TensorId id) {
  if (!trace.tensor(id).movable) return false;
  if (trace.hooks->offload) return true;
  const auto recomputable = [&](OpId op) { return trace.op(op).recomputable; };
  return trace.hooks->evict && std::ranges::all_of(liveness.Writers(id), recomputable);
}

// `state` is the optimizer state that is on the host between its updates.
StepFloor FloorOf(const Trace& trace, const Liveness& liveness, const StepPlaces& places,
                  std::span<const TensorId> state) {
  const size_t ops = trace.ops.size();
  size_t updates = ops;  // they begin here
  while (updates > 0 && trace.ops[updates - 1].phase == Phase::kUpdate) --updates;
  StepFloor floor;
  std::vector<int64_t> change(ops + 1), gradients(ops + 1);
  std::vector<std::vector<std::pair<size_t, size_t>>> present(trace.tensors.size());
  Bytes throughout;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensors[i];
    if (liveness.Root(id) != id) continue;
    const bool streamed = std::ranges::count(state, id) > 0;
    if (streamed) floor.state += tensor.size;
    const bool persistent = !streamed && (tensor.kind == TensorKind::kParameter ||
                                          tensor.kind == TensorKind::kOptimizerState);
    if (persistent) throughout += tensor.size;
    if (persistent || liveness.Uses(id).empty()) continue;
    const bool arrives = tensor.kind == TensorKind::kInput;
    present[i].emplace_back(arrives ? 0 : Index(liveness.Uses(id).front()),
                            Index(liveness.Uses(id).back()) + 1);
  }
  for (const StepPlaces::Times& times : places.storages()) {
    if (!MayMove(trace, liveness, times.storage)) continue;
    auto& spans = present[Index(times.storage)];
    spans = {{spans.front().first, Index(times.left) + 1}};
    for (const StepPlaces::Read& read : times.reads) {
      spans.emplace_back(Index(read.taken), Index(read.last) + 1);
    }
  }
  for (size_t i = 0; i < present.size(); ++i) {
    for (const auto& [begin, end] : present[i]) {
      change[begin] += trace.tensors[i].size.count();
      change[end] -= trace.tensors[i].size.count();
      const bool stays = end == updates && trace.tensors[i].kind == TensorKind::kGradient;
      if (stays && begin + 1 < ops) gradients[begin + 1] += trace.tensors[i].size.count();
    }
  }
  std::vector<Bytes> least(ops);
  int64_t alive = throughout.count(), made = 0;
  for (size_t i = 0; i < ops; ++i) {
    alive += change[i];
    made += gradients[i];
    const auto& recorded = trace.ops[i].recorded;
    least[i] = Bytes(alive) + recorded->workspace;
    if (least[i] <= floor.size) continue;
    floor.size = least[i];
    floor.op = static_cast<OpId>(i);
    floor.gradients = Bytes(made);
  }
  floor.throughout = throughout;
  const size_t at = Index(floor.op);
  for (size_t i = 0; i < present.size(); ++i) {
    for (const auto& [begin, end] : present[i]) {
      if (begin <= at && at < end) floor.held.push_back(static_cast<TensorId>(i));
    }
  }
  std::ranges::stable_sort(floor.held, std::greater(),
                           [&](TensorId id) { return trace.tensor(id).size; });
  for (size_t i = 0; i < ops; ++i) {
    if (trace.ops[i].slots.front().signature == trace.op(floor.op).slots.front().signature)
      continue;
    if (!floor.without || least[i] > floor.without->first) {
      floor.without = {least[i], static_cast<OpId>(i)};
    }
  }
  return floor;
}

// Returns the run of a step in which blocks lie wherever they fit in total: a budget counts the
// bytes that the program's allocator gives out.
Draft RunOf(const Inputs& inputs, const Case& asked, Bytes memory) {
  Draft run = inputs.DraftOf(asked);
  run.arena = Arena::Unplanned("counted");
  run.device.alignment = Bytes(1);  // the sizes of a recorded step are those of the blocks
  run.memory = memory;
  return run;
}

// Makes the search, keeps its result in `rungs`, and follows the last plan.
class Searching final : public ForwardingPolicy {
 public:
  Searching(const StepPlaces& places, const StepSearchOptions& options,
            std::vector<StepRung>& rungs)
      : places_(places), options_(options), rungs_(rungs) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string&) override {
    rungs_ = SearchSteps(trace, cost, places_, trial, options_);
    chosen_ = std::make_unique<StepExecutor>(rungs_.back().plan, places_, trace.ops.size());
    return {device.memory};
  }

 private:
  const StepPlaces& places_;
  const StepSearchOptions options_;
  std::vector<StepRung>& rungs_;
};

}  // namespace

StepPlanner::StepPlanner(const Case& asked, std::shared_ptr<const Trace> given, bool all_state)
    : inputs_(asked, std::move(given)),
      asked_(asked),
      liveness_(*inputs_.trace()),
      places_(
          [this]() -> const Trace& {
            if (!trace().hooks) {
              throw InputError(
                  fmt::format("{}: the step has no hooks, so its program cannot carry out a plan; "
                              "record it with "
                              "write_step of the Python package spillway_torch",
                              asked_.workload));
            }
            return trace();
          }(),
          liveness_),
      all_state_(all_state),
      least_(FloorOf(trace(), liveness_, places_, {}).size),
      floor_(FloorOf(trace(), liveness_, places_, places_.state())) {
  Draft run = RunOf(inputs_, asked_, Bytes::Unlimited());
  Trace plain = trace();
  plain.hooks.reset();  // nothing runs in the hooks of a step without a plan
  run.trace = std::make_shared<const Trace>(std::move(plain));
  run.policy = "liveness";
  eager_ = Predict(run, 1).report;
}

StepPrediction StepPlanner::PredictionOf(const Report& report) const {
  StepPrediction prediction;
  prediction.peak = report.metrics.peak_allocated;
  prediction.step = report.metrics.iteration;
  prediction.host = report.metrics.host;
  prediction.eager_peak = eager_.metrics.peak_allocated;
  prediction.eager_step = eager_.metrics.iteration;
  Duration before_update;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.kind != CommandKind::kKernel) continue;
    const Phase phase = trace().op(entry.op).phase;
    if (phase != Phase::kUpdate) before_update = std::max(before_update, entry.interval.end);
    if (phase != Phase::kForward || entry.recompute) continue;
    prediction.forward = std::max(prediction.forward, entry.interval.issued);
  }
  prediction.update = prediction.step - before_update;
  return prediction;
}

PolicyChoice StepPlanner::Following(const StepPlan& plan) const {
  return {"step-plan", [&plan, this] {
            return std::make_unique<StepExecutor>(plan, places_, trace().ops.size());
          }};
}

PlannedStep StepPlanner::Predicted(const StepPlan& plan, Bytes memory) const {
  PlannedStep planned{memory, plan, PredictionOf(eager_), Bytes(0)};
  if (plan.IsEmpty()) return planned;
  Draft run = RunOf(inputs_, asked_, Bytes::Unlimited());
  run.policy = Following(plan);
  planned.prediction = PredictionOf(Predict(run, 1).report);
  return planned;
}

PlannedStep StepPlanner::Tried(Bytes memory) const {
  PlannedStep planned{memory, {}, PredictionOf(eager_), Bytes(0)};
  if (eager_.metrics.peak_allocated <= memory) return planned;
  const Report report = Predict(RunOf(inputs_, asked_, memory), 1).report;
  // The plan of a run need not make each of its moves at the same moment, so that it is run itself.
  if (report.fits()) return Predicted(PlanFrom(report, places_, memory), memory);
  planned.best = memory;
  return planned;
}

std::vector<PlannedStep> StepPlanner::OfPolicy() const {
  const int64_t range = (eager_.metrics.peak_allocated - least_).count();
  std::vector<PlannedStep> tried(kLevels);
  InParallel(kLevels, [&](size_t i) {
    const auto square = static_cast<int64_t>(i * i);
    tried[i] = Tried(least_ + Bytes(range / (kLevels * kLevels) * square));
  });
  std::erase_if(tried, [](const PlannedStep& planned) { return !planned.fits(); });
  return tried;
}

PlannedStep StepPlanner::FastestOf(std::span<const PlannedStep> tried, Bytes memory) const {
  PlannedStep fastest{memory, {}, PredictionOf(eager_), eager_.metrics.peak_allocated};
  for (const PlannedStep& planned : tried) {
    const StepPrediction& prediction = planned.prediction;
    if (prediction.peak > AimOf(memory, least_)) {
      if (!fastest.fits()) fastest.best = std::min(fastest.best, MemoryFor(prediction.peak));
    } else if (!fastest.fits() || prediction.step < fastest.prediction.step) {
      fastest = planned;
    }
  }
  return fastest;
}

std::vector<StepRung> StepPlanner::RungsTo(Bytes memory) const {
  const auto ops = static_cast<int64_t>(trace().ops.size());
  const auto saved = static_cast<int64_t>(trace().saved.size());
  const StepSearchOptions options{least_, eager_.metrics.peak_allocated, memory,
                                  std::min(kTrialsOfOps / ops, kTrialsOfStorage * saved)};
  std::vector<StepRung> rungs;
  Draft run = RunOf(inputs_, asked_, Bytes::Unlimited());
  run.policy = {"step-search",
                [&] { return std::make_unique<Searching>(places_, options, rungs); }};
  Predict(run, 1);
  return rungs;
}

PlannedStep StepPlanner::OnRung(std::span<const StepRung> rungs, Bytes memory) const {
  const Bytes aim = AimOf(memory, least_);
  const auto above = std::ranges::upper_bound(rungs, aim, {}, &StepRung::memory);
  const StepRung& rung = *std::prev(above);
  if (rung.peak <= aim) return Predicted(rung.plan, memory);
  return {memory, {}, PredictionOf(eager_), MemoryFor(rung.peak)};
}

Bytes StepPlanner::AimOf(Bytes memory, Bytes floor) const {
  const Bytes margin =
      trace().recording->device == "CPU" ? Bytes(0) : Bytes(memory.count() / kMargin);
  return std::max(floor, memory - margin);
}

Bytes StepPlanner::MemoryFor(Bytes peak) const {
  const Bytes memory = trace().recording->device == "CPU"
                           ? peak
                           : Bytes(peak.count() / (kMargin - 1) * kMargin + 2 * kMargin);
  return std::min(memory, eager_.metrics.peak_allocated);
}

template <typename PlanIn>
PlannedStep StepPlanner::WithState(Bytes memory, const PlanIn& plan_in) const {
  PlannedStep fastest = plan_in(memory);
  if (all_state_) fastest.best = eager_.metrics.peak_allocated;  // it does not count
  if (fastest.fits() && fastest.plan.IsEmpty()) return fastest;
  const std::vector<TensorId>& state = places_.state();
  const std::vector<size_t> leaving = LeavingOrder(state.size());
  std::vector<size_t> left;  // indices of `state`, ascending
  Bytes size;
  for (int64_t share = all_state_ ? kStateShares : 1; share <= kStateShares && !state.empty();
       ++share) {
    while (std::ssize(left) < std::ssize(state) * share / kStateShares) {
      left.push_back(leaving[left.size()]);
      size += trace().tensor(state[left.back()]).size;
    }
    std::ranges::sort(left);
    std::vector<TensorId> outside;
    for (const size_t i : left) outside.push_back(state[i]);
    Bytes room = memory + size;
    PlannedStep planned = plan_in(room);
    // What updates need on the device while their state comes and goes is taken from the rest.
    for (int attempt = 1; planned.fits(); ++attempt) {
      planned.plan.state = outside;
      planned = Predicted(planned.plan, memory);
      const Bytes over = planned.prediction.peak - AimOf(memory, floor_.size);
      if (over <= Bytes(0)) break;
      if (attempt == kStateAttempts) {
        planned.best = MemoryFor(planned.prediction.peak) + size;
        break;
      }
      room -= over;
      planned = plan_in(room);
    }
    if (!planned.fits()) {
      if (fastest.fits()) continue;
      PlannedStep least = plan_in(planned.best);
      if (!least.fits()) continue;
      least.plan.state = outside;
      const Bytes peak = Predicted(least.plan, memory).prediction.peak;
      fastest.best = std::min(fastest.best, MemoryFor(peak));
    } else if (!fastest.fits() || planned.prediction.step < fastest.prediction.step) {
      fastest = std::move(planned);
    }
  }
  return fastest;
}

std::vector<PlannedStep> StepPlanner::In(std::span<const Bytes> budgets) const {
  const Bytes eager = eager_.metrics.peak_allocated;
  std::vector<StepRung> rungs;
  std::vector<PlannedStep> tried;
  Bytes most;
  for (const Bytes memory : budgets) {
    const Bytes on_device = std::max(memory, floor_.size) + floor_.state;
    if (memory < eager) most = std::max(most, AimOf(std::min(eager, on_device), least_));
  }
  if (most > Bytes(0)) {
    if (asked_.policy.name() == kDefault) {
      rungs = RungsTo(most);
    } else {
      tried = OfPolicy();
    }
  }
  const auto plan_in = [&](Bytes memory) {
    if (memory >= eager) return PlannedStep{memory, {}, PredictionOf(eager_), Bytes(0)};
    if (memory < least_) return PlannedStep{memory, {}, PredictionOf(eager_), least_};
    return rungs.empty() ? FastestOf(tried, memory) : OnRung(rungs, memory);
  };
  std::vector<PlannedStep> all;
  for (const Bytes memory : budgets) {
    PlannedStep& planned = all.emplace_back(WithState(std::max(memory, floor_.size), plan_in));
    planned.memory = memory;
    if (memory < floor_.size && planned.fits()) {
      planned = {memory, {}, PredictionOf(eager_), floor_.size};
    }
  }
  return all;
}

PlannedStep StepPlanner::In(Bytes memory) const {
  const PlannedStep planned = In(std::span(&memory, 1)).front();
  Bytes less = memory;
  for (int i = 0; i < kLess && !planned.fits(); ++i) {
    less -= Bytes(memory.count() / kLessBy);
    if (less < floor_.size) break;
    PlannedStep other = In(std::span(&less, 1)).front();
    if (!other.fits()) continue;
    other.memory = memory;
    return other;
  }
  return planned;
}

std::vector<PlannedStep> StepPlanner::Curve() const {
  const Bytes most = eager_.metrics.peak_allocated;
  std::set<Bytes> budgets{floor_.size, most};
  for (const int64_t share : kShares) {
    budgets.insert(floor_.size + Bytes((most - floor_.size).count() / 100 * share));
  }
  return In(std::vector(budgets.begin(), budgets.end()));
}

std::string StepPlanner::Format(const PlannedStep& planned) const {
  return FormatStepPlan(planned.plan, trace(), places_, planned.memory, asked_.policy.name(),
                        planned.prediction);
}

}  // namespace spillway::lab
