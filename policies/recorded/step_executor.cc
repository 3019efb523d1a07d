#include "policies/recorded/step_executor.h"

#include <algorithm>
#include <utility>

#include "policies/parts/forwarding_policy.h"
#include "sim/core/report.h"

namespace spillway::policies {
namespace {

class CarriedOutPolicy final : public ForwardingPolicy {
 public:
  explicit CarriedOutPolicy(std::unique_ptr<Policy> policy) : decides_(std::move(policy)) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    const Liveness liveness(trace);
    const StepPlaces places(trace, liveness);
    const Report report = trial(*decides_, device.memory, {.iterations = 1});
    const StepPlan plan = report.fits() ? PlanFrom(report, places, device.memory) : StepPlan();
    chosen_ = std::make_unique<StepExecutor>(plan, places, trace.ops.size());
    return {device.memory};
  }

 private:
  const std::unique_ptr<Policy> decides_;
};

}  // namespace

StepExecutor::StepExecutor(const StepPlan& plan, const StepPlaces& places, size_t ops)
    : moves_(ops), state_(plan.state) {
  for (size_t op = 0; op < ops; ++op) moves_[op].hook = places.LastBefore(op) == op;
  auto times = places.storages().begin();
  for (const StepPlan::Storage& storage : plan.storages) {
    while (times->storage != storage.storage) ++times;  // both are in the order of packing
    const auto at = [&](size_t op) -> Moves& { return moves_[std::min(op, ops - 1)]; };
    if (storage.fate == StepFate::kOffload) {
      // The op behind the hook may use the storage, which would then be pinned.
      at(Index(times->packed) - 1).copied.push_back(storage.storage);
      for (const size_t op : storage.At(StepMove::kRelease)) {
        at(op).released.push_back(storage.storage);
      }
      for (const size_t op : storage.At(StepMove::kPrefetch)) {
        at(op).prefetched.push_back({Verb::kPrefetch, storage.storage});
      }
    } else {
      at(Index(times->left)).evicted.push_back(storage.storage);
    }
    for (const size_t drop : storage.At(StepMove::kDrop)) {
      const auto read =
          std::ranges::find(times->reads, static_cast<OpId>(drop), &StepPlaces::Read::taken);
      if (read == times->reads.end()) {
        at(drop).read.push_back(storage.storage);
        continue;
      }
      auto& moves = at(Index(read->last));
      (storage.fate == StepFate::kOffload ? moves.dropped : moves.evicted)
          .push_back(storage.storage);
    }
  }
}

bool StepExecutor::LivesOutside(const Trace&, TensorId tensor) {
  return std::ranges::count(state_, tensor) > 0;
}

void StepExecutor::BeforeLaunch(PolicyContext& context, OpId op) {
  const Trace& trace = context.trace();
  if (state_.empty() || trace.op(op).phase != Phase::kUpdate) return;
  for (const TensorId used : trace.op(op).inputs) {
    const auto now = std::ranges::find(state_, used);
    if (now == state_.end() || std::next(now) == state_.end()) continue;
    context.Prefetch(*std::next(now));  // one comes while another one is updated
  }
}

void StepExecutor::BeforeOp(PolicyContext& context, OpId op) {
  if (context.recomputing()) return;
  if (op == OpId{0}) late_.clear();
  const Moves& moves = moves_[Index(op)];
  for (const TensorId id : moves.released) context.Release(id);
  late_.insert(late_.end(), moves.prefetched.begin(), moves.prefetched.end());
  if (!moves.hook) return;
  std::erase_if(late_, [&](const VerbCall& call) {
    return context.Where(call.tensor) != Residency::kOutside || context.Do(call);
  });
}

void StepExecutor::AfterOp(PolicyContext& context, OpId op) {
  if (const auto served = context.recomputing()) {
    GiveUp(context, moves_[Index(*served)].read);
    return;
  }
  const Moves& moves = moves_[Index(op)];
  GiveUp(context, moves.read);
  for (const TensorId id : moves.dropped) context.Release(id);
  for (const TensorId id : moves.evicted) context.Evict(id);
  for (const TensorId id : moves.copied) context.Offload(id);
}

void StepExecutor::GiveUp(PolicyContext& context, const std::vector<TensorId>& storages) {
  for (const TensorId id : storages) {
    if (!context.Release(id) && context.Where(id) == Residency::kDevice) context.Evict(id);
  }
}

std::unique_ptr<Policy> CarriedOut(std::unique_ptr<Policy> policy) {
  if (dynamic_cast<const StepExecutor*>(policy.get()) != nullptr) return policy;
  return std::make_unique<CarriedOutPolicy>(std::move(policy));
}

}  // namespace spillway::policies
