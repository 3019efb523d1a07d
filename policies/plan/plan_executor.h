// A policy that follows a plan of the joint planner.
//
// The copy of an offloaded storage starts when the op that writes it has been issued. Its block is
// released when a request finds no room; the oldest copy goes first, since it has landed first. A
// prefetch starts before the op that the plan names, or as soon after it as there is room, and
// prefetches keep the order in which the storages are needed. If the plan leaves nothing to
// release, the storage that is needed last leaves. So nearly every plan fits. What lives outside is
// prefetched as in streamed_parameters.h.

#ifndef SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_
#define SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_

#include <memory>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/streamed_parameters.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "sim/core/policy.h"

namespace spillway::policies {

class PlanExecutor final : public Policy {
 public:
  // REQUIRES: the facts are about the trace that runs.
  PlanExecutor(std::shared_ptr<const JointFacts> facts, JointPlan plan, KernelChooser chooser);

  bool LivesOutside(const Trace& trace, TensorId tensor) override;
  void BeforeOp(PolicyContext& context, OpId op) override;
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override;
  bool OnAllocFailure(PolicyContext& context, Bytes size) override;

  // Returns true if `JointPlan::drops` has decided about a storage so far. If not, the run is the
  // same with the other value of `drops`, given that this plan has it.
  bool dropped() const { return dropped_; }

 private:
  // A storage that was copied out against the plan.
  struct GivenUp {
    TensorId storage{};
    OpId next{};       // its next use when it left
    Duration refetch;  // the earliest time at which it comes back
  };

  const StoragePlan& Of(TensorId storage) const { return plan_.storages[Index(storage)]; }
  // Releases the offloaded storage that was copied first and that no prefetch is due for yet.
  // Returns false if there is none.
  bool ReleaseOldest(PolicyContext& context);
  // Makes the storage leave that is needed last: evicts it if that is better, or else copies it
  // out. Returns false if none can leave.
  bool GiveUpFarthest(PolicyContext& context);
  // Returns true if the plan evicts the storage, or if recomputing it for the op, from storages
  // that the plan has on the device then, takes less time than copying it back.
  bool RecomputedSooner(TensorId storage, OpId at);
  // Moves `farthest_` back so that it is not behind the next use of the storage.
  void Consider(const PolicyContext& context, TensorId storage);
  // Notes that a storage has been copied out against the plan.
  void GiveUp(TensorId storage, OpId next);
  // Prefetches the storages in `given_up_` whose time has come, if there is room.
  void Refetch(PolicyContext& context, OpId op);

  const std::shared_ptr<const JointFacts> facts_;
  const JointPlan plan_;
  const KernelChooser chooser_;
  const std::vector<OpId> needs_;
  std::vector<std::vector<TensorId>> copied_at_, dropped_at_;  // by op
  std::vector<TensorId> queue_;                                // to prefetch, in this order
  StreamedParameters streamed_;

  OpId current_{};
  std::vector<OpId> issued_;  // since `farthest_` was brought up to date
  std::vector<GivenUp> given_up_;
  std::vector<TensorId> unreleased_;  // copied, oldest first
  bool dropped_ = false;
  size_t prefetched_ = 0;  // how many storages of the queue
  size_t farthest_ = 0;    // no use before this index in the facts' uses is the next use of a
                           // storage that may leave, unless an op in `issued_` names it
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_
