#include "policies/plan/trials.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "policies/parts/in_parallel.h"
#include "policies/plan/plan_executor.h"

namespace spillway::policies {
namespace {

// A prefetch is planned to start this long before it has to.
constexpr Duration kSlack = Duration::Milliseconds(2);
// One part in this many of the memory is left to holes between blocks when prefetches are planned.
constexpr int64_t kMargin = 100;

// Makes each prefetch of the plan start as early as the profile allows, in the order in which the
// storages are needed.
void SchedulePrefetches(const JointFacts& facts, Profile profile, JointPlan& plan) {
  const std::vector<OpId> needs = NeedsOf(facts, plan);
  std::vector<TensorId> queue;
  for (const TensorId id : facts.movable()) {
    if (plan.storages[Index(id)].fate == Fate::kOffload) queue.push_back(id);
  }
  std::ranges::stable_sort(queue, {}, [&](TensorId id) { return needs[Index(id)]; });
  // The latest time at which each copy has to start so that no copy is late.
  std::vector<Duration> latest(queue.size());
  Duration next = Duration::Max();
  for (size_t i = queue.size(); i-- > 0;) {
    const TensorId id = queue[i];
    next = std::min(next, facts.StartOf(needs[Index(id)])) -
           facts.cost().CopyTime(Direction::kToDevice, facts.trace().tensor(id).size);
    latest[i] = next - kSlack;
  }
  const Bytes room = plan.memory - Bytes(plan.memory.count() / kMargin);
  for (size_t i = 0; i < queue.size(); ++i) {
    const TensorId id = queue[i];
    size_t op = Index(needs[Index(id)]);
    size_t earliest = Index(facts.GapOf(id)->left) + 1;
    const auto ops = std::views::iota(earliest, std::max(earliest, op));
    const auto in_time = std::ranges::partition_point(
        ops, [&](size_t before) { return facts.StartOf(static_cast<OpId>(before)) < latest[i]; });
    earliest += static_cast<size_t>(in_time - ops.begin());
    const Bytes size = facts.Aligned(id);
    while (op > earliest && profile[op - 1] + size <= room) profile[--op] += size;
    plan.storages[Index(id)].prefetch = static_cast<OpId>(op);
  }
}

// Returns the profile of a trial of the plan, from the placements in the trial's report.
Profile ProfileOf(const JointFacts& facts, const JointPlan& plan, const Report& report) {
  Profile profile(facts.trace().ops.size());
  const std::vector<OpId> needs = NeedsOf(facts, plan);
  Bytes needed;
  OpId op{};
  // An offloaded storage that is still there between its last use and its next could be released.
  std::vector<std::vector<TensorId>> leave(profile.size()), wanted(profile.size());
  std::vector<bool> held(plan.storages.size()), idle(plan.storages.size());
  for (const TensorId id : facts.movable()) {
    if (plan.storages[Index(id)].fate != Fate::kOffload) continue;
    leave[Index(facts.GapOf(id)->left)].push_back(id);
    wanted[Index(needs[Index(id)])].push_back(id);
  }
  const auto begin_op = [&](OpId next) {
    while (op < next) {
      for (const TensorId id : leave[Index(op)]) {
        idle[Index(id)] = true;
        if (held[Index(id)]) needed -= facts.Aligned(id);
      }
      op = static_cast<OpId>(Index(op) + 1);
      for (const TensorId id : wanted[Index(op)]) {
        idle[Index(id)] = false;
        if (held[Index(id)]) needed += facts.Aligned(id);
      }
      profile[Index(op)] = needed;
    }
  };
  for (const Placement& placement : report.placements) {
    if (!placement.on_device() || placement.kind > PlacementKind::kFree) continue;
    begin_op(placement.op);
    const bool taken = placement.kind == PlacementKind::kAllocate;
    if (placement.tensor != kNoTensor) {
      held[Index(placement.tensor)] = taken;
      if (idle[Index(placement.tensor)]) continue;
    }
    needed += taken ? placement.block.size : Bytes(0) - placement.block.size;
    profile[Index(op)] = std::max(profile[Index(op)], needed);
  }
  begin_op(static_cast<OpId>(facts.trace().ops.size() - 1));
  return profile;
}

// Returns the least time of these kernels, whatever runs before the op.
Duration TimeOf(const CostModel& cost, const Op& op, const KernelPlan& kernels) {
  Duration time;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelRun& run = kernels[i];
    const Kernel& kernel = cost.Kernels(op, run.slot, run.batch)[run.kernel];
    const bool may_be_warm = i == 0 || kernels[i - 1].slot == run.slot;
    time += kernel.time - (may_be_warm ? kernel.in_sequence : Duration());
  }
  return time;
}

}  // namespace

Profile ProfileInCore(const JointFacts& facts, const JointPlan& plan) {
  Profile profile(facts.trace().ops.size() + 1);
  for (size_t i = 0; i < facts.trace().tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Liveness& liveness = facts.liveness();
    if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
    if (plan.storages[i].fate == Fate::kOutside) {
      for (const OpId op : liveness.Uses(id)) {
        profile[Index(op)] += facts.Aligned(id);
        profile[Index(op) + 1] -= facts.Aligned(id);
      }
      continue;
    }
    const TensorKind kind = facts.trace().tensor(id).kind;
    const bool stays = StaysOnDevice(kind);
    const size_t from = stays || kind == TensorKind::kInput ? 0 : Index(*liveness.FirstUse(id));
    const size_t to = stays ? facts.trace().ops.size() : Index(*liveness.LastUse(id)) + 1;
    profile[from] += facts.Aligned(id);
    profile[to] -= facts.Aligned(id);
  }
  for (size_t i = 1; i < profile.size(); ++i) profile[i] += profile[i - 1];
  profile.pop_back();
  for (size_t i = 0; i < profile.size(); ++i) {
    Bytes workspace;
    const Op& op = facts.trace().ops[i];
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      workspace = std::max(workspace, facts.cost().Kernels(op, slot, op.batch)[0].workspace);
    }
    profile[i] += workspace;
  }
  return profile;
}

void AdjustProfile(const JointFacts& facts, const JointPlan& from, Scored& to) {
  Profile changes(to.profile.size() + 1);
  for (const TensorId id : facts.movable()) {
    const bool kept = from.storages[Index(id)].fate == Fate::kKeep;
    const bool keeps = to.plan.storages[Index(id)].fate == Fate::kKeep;
    if (kept == keeps) continue;
    const Gap& gap = *facts.GapOf(id);
    const Bytes change = kept ? Bytes(0) - facts.Aligned(id) : facts.Aligned(id);
    changes[Index(gap.left) + 1] += change;
    changes[std::max(Index(gap.left) + 1, Index(gap.needed))] -= change;
  }
  Bytes change;
  for (size_t op = 0; op < to.profile.size(); ++op) {
    change += changes[op];
    to.profile[op] += change;
  }
}

std::optional<Judged> Judge(const SearchOptions& search, TrialOptions options,
                            const std::function<Report(const TrialOptions&)>& run) {
  Judged judged{run(options), {}};
  if (!judged.report.fits()) return std::nullopt;
  judged.time = judged.report.metrics.iteration;
  if (search.slower_link == 1) return judged;
  options.link = search.slower_link;
  const Report slower = run(options);
  if (!slower.fits()) return std::nullopt;
  const Duration both = judged.time + slower.metrics.iteration;
  judged.time = Duration::Picoseconds(both.picoseconds() / 2);
  return judged;
}

const Scored* FindWithDrops(std::span<const Scored> trials, const JointPlan& plan) {
  if (plan.drops) return nullptr;
  JointPlan with = plan;
  with.drops = true;
  const auto same = std::ranges::find_if(
      trials, [&](const Scored& trial) { return !trial.dropped && trial.plan == with; });
  return same == trials.end() ? nullptr : &*same;
}

Trials::Trials(std::shared_ptr<const JointFacts> facts, const TrialRun& run,
               const SearchOptions& search)
    : facts_(std::move(facts)), run_(run), options_(search), left_(search.trials) {
  for (size_t i = 0; i < facts_->trace().ops.size(); ++i) {
    least_times_.push_back(facts_->TimeOf(static_cast<OpId>(i)));
    if (!options_.chooser.batches()) continue;
    const Op& op = facts_->trace().ops[i];
    const std::vector<KernelPlan> ways = options_.chooser.Ways(facts_->cost(), op);
    if (!ways.empty()) least_times_.back() = TimeOf(facts_->cost(), op, ways.back());
  }
}

void Trials::Score(std::span<Scored> plans, Duration limit) {
  left_ -= Of(plans.size());
  InParallel(plans.size(), [&](size_t i) {
    Scored& scored = plans[i];
    scored.time = kForever;
    if (options_.skip && LeastTimeOf(scored.plan) >= limit) return;
    SchedulePrefetches(*facts_, scored.profile, scored.plan);
    const Scored* same = options_.skip && known_ ? FindWithDrops(*known_, scored.plan) : nullptr;
    if (same != nullptr) {
      scored.time = same->time;
      scored.own = same->own;
      scored.fragmentation = same->fragmentation;
    } else {
      MakeTrial(scored);
    }
    if (scored.by_own) scored.profile = scored.own;
  });
  if (!known_) return;
  std::ranges::copy_if(plans, std::back_inserter(*known_),
                       [](const Scored& trial) { return trial.plan.drops && !trial.dropped; });
}

// Returns the time of the plan's kernels if each evicted storage is recomputed once, and everything
// that this reads is there.
Duration Trials::LeastTimeOf(const JointPlan& plan) const {
  std::vector<bool> again(least_times_.size());
  for (const TensorId id : facts_->movable()) {
    if (plan.storages[Index(id)].fate != Fate::kEvict) continue;
    for (const OpId writer : facts_->liveness().Writers(id)) {
      if (writer <= facts_->GapOf(id)->left) again[Index(writer)] = true;
    }
  }
  Duration time;
  for (size_t i = 0; i < again.size(); ++i) {
    const Op& op = facts_->trace().ops[i];
    const Duration once =
        plan.kernels[i].empty() ? least_times_[i] : TimeOf(facts_->cost(), op, plan.kernels[i]);
    time += once;
    if (again[i]) time += op.recorded && op.recorded->again ? op.recorded->again->time : once;
  }
  return time;
}

void Trials::MakeTrial(Scored& scored) const {
  scored.dropped = false;
  const auto judged = Judge(options_, {options_.iterations, 1, options_.reordered},
                            [&](const TrialOptions& options) {
                              PlanExecutor executor(facts_, scored.plan, options_.chooser);
                              Report report = run_(executor, scored.plan.memory, options);
                              scored.dropped |= executor.dropped();
                              return report;
                            });
  if (!judged) return;
  scored.time = judged->time;
  scored.own = ProfileOf(*facts_, scored.plan, judged->report);
  scored.fragmentation = judged->report.metrics.fragmentation();
}

}  // namespace spillway::policies
