// Follows a plan of the joint planner.
//
// Copies out start with the op that has written the storage; its block is given back where a
// request finds no room, what was copied first before the rest, since that has landed first.
// Prefetches start before the ops that the plan names, in the order of their needs, or as soon
// after as there is room. Where nothing of the plan is left to give back, what is needed last goes:
// nearly every plan fits.

#ifndef SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_
#define SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_

#include <memory>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "sim/core/policy.h"

namespace spillway {

class PlanExecutor final : public Policy {
 public:
  // The facts are of the trace that runs.
  PlanExecutor(std::shared_ptr<const JointFacts> facts, JointPlan plan, KernelChooser chooser);

  void BeforeOp(PolicyContext& context, OpId op) override;
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override;
  bool OnAllocFailure(PolicyContext& context, Bytes size) override;

 private:
  // Outside alone, against the plan, unless it has come back since.
  struct GivenUp {
    TensorId storage{};
    OpId next{};       // its next use then
    Duration refetch;  // from when on it may come back
  };

  const StoragePlan& Of(TensorId storage) const { return plan_.storages[Index(storage)]; }
  // Gives back the offloaded storage that was copied first and is not yet wanted again.
  bool ReleaseOldest(PolicyContext& context);
  // Gives back what is needed last: drops it where that is better, or else copies it out.
  bool GiveUpFarthest(PolicyContext& context);
  // Whether it takes less time to rebuild a storage for the op than to copy it back: from what is
  // there then by the plan.
  bool RebuiltSooner(TensorId storage, OpId at) const;
  // Has `farthest_` come before what is there, or will be used later, from now on.
  void Consider(const PolicyContext& context, TensorId storage);
  // Takes down what has been copied out against the plan.
  void GiveUp(TensorId storage, OpId next);
  // Has what was given up come back before its next use, if there is room.
  void Refetch(PolicyContext& context, OpId op);

  const std::shared_ptr<const JointFacts> facts_;
  const JointPlan plan_;
  const KernelChooser chooser_;
  const std::vector<OpId> needs_;
  std::vector<std::vector<TensorId>> copied_at_, dropped_at_;  // by op
  std::vector<TensorId> queue_;                                // to be prefetched, in order

  OpId current_{};
  std::vector<OpId> preparing_;  // it, and those that run again for it
  std::vector<GivenUp> given_up_;
  std::vector<TensorId> unreleased_;  // copied, oldest first
  size_t prefetched_ = 0;             // of the queue
  size_t farthest_ = 0;               // of the facts' uses: those before it are no next uses of
                                      // what may leave
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_PLAN_EXECUTOR_H_
