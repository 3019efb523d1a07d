#include "policies/joint/executor.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace spillway {
namespace {

// What was given up starts to come back so much before it has to.
constexpr Duration kSlack = Duration::Microseconds(500);

bool IsOnDevice(const PolicyContext& context, TensorId storage) {
  const Residency where = context.Where(storage);
  return where == Residency::kDevice || where == Residency::kBoth;
}

}  // namespace

PlanExecutor::PlanExecutor(std::shared_ptr<const JointFacts> facts, JointPlan plan,
                           KernelChooser chooser)
    : facts_(std::move(facts)),
      plan_(std::move(plan)),
      chooser_(std::move(chooser)),
      needs_(NeedsOf(*facts_, plan_)),
      copied_at_(facts_->trace().ops.size()),
      dropped_at_(facts_->trace().ops.size()) {
  for (const TensorId id : facts_->movable()) {
    const Gap& gap = *facts_->GapOf(id);
    if (Of(id).fate == Fate::kOffload) {
      copied_at_[Index(gap.written)].push_back(id);
      queue_.push_back(id);
    } else if (Of(id).fate == Fate::kEvict) {
      dropped_at_[Index(gap.left)].push_back(id);
    }
  }
  const Liveness& liveness = facts_->liveness();
  for (size_t i = 0; i < plan_.storages.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const bool is_storage = liveness.Root(id) == id && !liveness.Uses(id).empty();
    if (is_storage && !StaysOnDevice(facts_->trace().tensor(id).kind)) may_leave_.push_back(id);
  }
  std::ranges::stable_sort(
      queue_, {}, [this](TensorId id) { return std::tuple(Of(id).prefetch, needs_[Index(id)]); });
}

void PlanExecutor::BeforeOp(PolicyContext& context, OpId op) {
  if (context.recomputing()) return;
  current_ = op;
  if (op != OpId{0}) return;
  unreleased_.clear();
  given_up_.clear();
  prefetched_ = 0;
}

KernelPlan PlanExecutor::ChooseKernels(PolicyContext& context, OpId op) {
  if (!plan_.kernels[Index(op)].empty()) return plan_.kernels[Index(op)];
  const KernelPlan fastest = chooser_.ByRule(KernelChoice::kPerformance, context, op);
  const Bytes wanted = WorkspaceOf(fastest, context, op);
  while (context.Stats().largest_free < wanted) {
    if (!ReleaseOldest(context)) return chooser_.ByRule(KernelChoice::kGreedy, context, op);
  }
  return fastest;
}

void PlanExecutor::BeforeLaunch(PolicyContext& context, OpId op) {
  if (context.recomputing()) return;
  while (prefetched_ < queue_.size() && Of(queue_[prefetched_]).prefetch <= op) {
    const TensorId next = queue_[prefetched_];
    if (context.Where(next) == Residency::kOutside && needs_[Index(next)] > op &&
        !context.Prefetch(next)) {
      return;
    }
    ++prefetched_;
  }
  Refetch(context, op);
}

void PlanExecutor::Refetch(PolicyContext& context, OpId op) {
  std::erase_if(given_up_, [&](TensorId id) { return context.Where(id) != Residency::kOutside; });
  for (const TensorId id : given_up_) {
    const auto next = context.NextUse(id);
    if (!next || *next <= op) continue;
    const Duration copy =
        facts_->cost().CopyTime(Direction::kToDevice, facts_->trace().tensor(id).size);
    if (facts_->StartOf(*next) - facts_->StartOf(op) <= copy + kSlack) context.Prefetch(id);
  }
}

void PlanExecutor::AfterOp(PolicyContext& context, OpId op) {
  if (!context.recomputing()) {
    for (const TensorId id : copied_at_[Index(op)]) {
      if (context.Offload(id)) unreleased_.push_back(id);
    }
    for (const TensorId id : dropped_at_[Index(op)]) context.Evict(id);
  }
  for (const TensorId id : context.liveness().Storages(op)) {
    if (!Of(id).again || facts_->GapOf(id)->left >= current_ || !IsOnDevice(context, id)) continue;
    const std::optional<OpId> next = context.NextUse(id);
    if (next && Index(*next) > Index(current_) + 1) context.Evict(id);
  }
}

Hint PlanExecutor::PlacementHint(const PolicyContext& context, TensorId tensor) {
  const bool kept = Of(context.liveness().Root(tensor)).fate == Fate::kKeep;
  return plan_.apart && !kept ? Hint::kHigh : Hint::kLow;
}

bool PlanExecutor::OnAllocFailure(PolicyContext& context, Bytes) {
  return ReleaseOldest(context) || GiveUpFarthest(context);
}

bool PlanExecutor::ReleaseOldest(PolicyContext& context) {
  for (auto oldest = unreleased_.begin(); oldest != unreleased_.end();) {
    const TensorId id = *oldest;
    const bool waits = facts_->GapOf(id)->left <= current_ && Of(id).prefetch > current_;
    if (waits && context.Release(id)) {
      unreleased_.erase(oldest);
      return true;
    }
    ++oldest;
  }
  return false;
}

bool PlanExecutor::GiveUpFarthest(PolicyContext& context) {
  using Victim = std::tuple<bool, OpId, TensorId>;  // not small; next use
  std::vector<Victim> victims;
  for (const TensorId id : may_leave_) {
    if (!IsOnDevice(context, id)) continue;
    if (const auto next = context.NextUse(id); next && !context.Pinned(id)) {
      const bool big = context.trace().tensor(id).size >= Bytes::KiB(64);
      victims.emplace_back(big, *next, id);
    }
  }
  std::ranges::make_heap(victims);
  for (; !victims.empty(); victims.pop_back()) {
    std::ranges::pop_heap(victims);
    const auto& [big, next, id] = victims.back();
    if (RebuiltSooner(id, next) && context.Evict(id)) return true;
    if (context.Offload(id) && context.Release(id)) {
      given_up_.push_back(id);
      return true;
    }
    if (context.Evict(id)) return true;
  }
  return false;
}

bool PlanExecutor::RebuiltSooner(TensorId storage, OpId at) const {
  if (Of(storage).fate == Fate::kEvict) return true;
  if (!plan_.drops || !facts_->GapOf(storage)) return false;
  const std::optional<Duration> rebuild = facts_->RebuildTime(storage);
  const Bytes size = facts_->trace().tensor(storage).size;
  if (!rebuild || *rebuild >= facts_->cost().CopyTime(Direction::kToDevice, size)) return false;
  const auto stays = [&](TensorId input) {
    const TensorId id = facts_->liveness().Root(input);
    const TensorKind kind = facts_->trace().tensor(id).kind;
    return id == storage || StaysOnDevice(kind) ||
           (Of(id).fate != Fate::kEvict && *facts_->liveness().LastUse(id) >= at);
  };
  return std::ranges::all_of(facts_->liveness().Writers(storage), [&](OpId writer) {
    return writer >= at || std::ranges::all_of(facts_->trace().op(writer).inputs, stays);
  });
}

}  // namespace spillway
