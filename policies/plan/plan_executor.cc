#include "policies/plan/plan_executor.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace spillway::policies {
namespace {

// The copy back of a storage that was given up starts this long before it has to.
constexpr Duration kSlack = Duration::Microseconds(500);
// What lives outside is prefetched for so many ops that use some. A recorded program has the state
// of one update come while it makes another one (`spillway_torch.fit`).
constexpr int kAhead = 16;
constexpr int kProgramAhead = 1;

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
  std::ranges::stable_sort(
      queue_, {}, [this](TensorId id) { return std::tuple(Of(id).prefetch, needs_[Index(id)]); });
  std::vector<bool> outside;
  for (const StoragePlan& storage : plan_.storages) {
    outside.push_back(storage.fate == Fate::kOutside);
  }
  if (std::ranges::count(outside, true) == 0) return;
  streamed_ =
      StreamedParameters(std::move(outside), facts_->trace().recording ? kProgramAhead : kAhead);
}

bool PlanExecutor::LivesOutside(const Trace& trace, TensorId tensor) {
  return streamed_.LivesOutside(trace, tensor);
}

void PlanExecutor::BeforeOp(PolicyContext& context, OpId op) {
  if (context.recomputing()) return;
  current_ = op;
  if (op != OpId{0}) return;
  issued_.clear();
  unreleased_.clear();
  given_up_.clear();
  prefetched_ = 0;
  farthest_ = 0;
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
    if (context.Where(next) == Residency::kOutside) {
      if (!context.Prefetch(next)) return;
      Consider(context, next);
    }
    ++prefetched_;
  }
  Refetch(context, op);
  streamed_.PrefetchAfter(context, op);
}

void PlanExecutor::GiveUp(TensorId storage, OpId next) {
  const Bytes size = facts_->trace().tensor(storage).size;
  const Duration copy = facts_->cost().CopyTime(Direction::kToDevice, size);
  given_up_.push_back({storage, next, facts_->StartOf(next) - copy - kSlack});
}

void PlanExecutor::Refetch(PolicyContext& context, OpId op) {
  std::erase_if(given_up_, [&](const GivenUp& gone) {
    if (facts_->StartOf(op) < gone.refetch) return false;
    const bool is_outside = context.Where(gone.storage) == Residency::kOutside;
    if (!is_outside || gone.next <= op || context.NextUse(gone.storage) != gone.next) return true;
    if (context.Prefetch(gone.storage)) Consider(context, gone.storage);
    return false;
  });
}

void PlanExecutor::Consider(const PolicyContext& context, TensorId storage) {
  const std::optional<OpId> next = context.NextUse(storage);
  if (next) farthest_ = std::min(farthest_, facts_->RankOf(storage, *next));
}

void PlanExecutor::AfterOp(PolicyContext& context, OpId op) {
  if (!context.recomputing()) {
    for (const TensorId id : copied_at_[Index(op)]) {
      if (context.Offload(id)) unreleased_.push_back(id);
    }
    for (const TensorId id : dropped_at_[Index(op)]) context.Evict(id);
  }
  issued_.push_back(op);
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
  return streamed_.MakeRoom(context) || ReleaseOldest(context) || GiveUpFarthest(context);
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
  const std::vector<Use>& uses = facts_->uses();
  const auto may_leave = [&](const Use& use) {
    return IsOnDevice(context, use.storage) && context.NextUse(use.storage) == use.op &&
           !context.Pinned(use.storage);
  };
  for (const OpId op : issued_) {
    for (const TensorId id : context.liveness().Storages(op)) Consider(context, id);
  }
  issued_.clear();
  while (farthest_ < uses.size() && !may_leave(uses[farthest_])) ++farthest_;
  for (size_t i = farthest_; i < uses.size(); ++i) {
    if (!may_leave(uses[i])) continue;
    const TensorId id = uses[i].storage;
    if (RecomputedSooner(id, uses[i].op) && context.Evict(id)) return true;
    if (context.Offload(id) && context.Release(id)) {
      GiveUp(id, uses[i].op);
      return true;
    }
    if (context.Evict(id)) return true;
  }
  return false;
}

bool PlanExecutor::RecomputedSooner(TensorId storage, OpId at) {
  if (Of(storage).fate == Fate::kEvict) return true;
  if (!plan_.drops || !facts_->GapOf(storage)) return false;
  const std::optional<Duration> recompute = facts_->RecomputeTime(storage);
  const Bytes size = facts_->trace().tensor(storage).size;
  if (!recompute || *recompute >= facts_->cost().CopyTime(Direction::kToDevice, size)) return false;
  const auto stays = [&](TensorId input) {
    const TensorId id = facts_->liveness().Root(input);
    const TensorKind kind = facts_->trace().tensor(id).kind;
    return id == storage || StaysOnDevice(kind) ||
           (Of(id).fate != Fate::kEvict && *facts_->liveness().LastUse(id) >= at);
  };
  const bool sooner = std::ranges::all_of(facts_->liveness().Writers(storage), [&](OpId writer) {
    return writer >= at || std::ranges::all_of(facts_->trace().op(writer).inputs, stays);
  });
  dropped_ |= sooner;
  return sooner;
}

}  // namespace spillway::policies
