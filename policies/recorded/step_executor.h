// Policies on a recorded program that can carry their decisions out.
//
// A policy decides in the middle of a run. The program's executor knows the decisions before the
// step begins, and acts in the hooks of autograd alone: it starts each copy to the host where
// autograd saves the storage, and lets go of storages and fetches them where a hook is. Optimizer
// state that is on the host comes back for its update, and leaves behind it.
// `CarriedOut` makes a run of the policy first, and then a run as the executor does it.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_EXECUTOR_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_EXECUTOR_H_

#include <memory>
#include <optional>
#include <vector>

#include "policies/recorded/step_plan.h"
#include "sim/core/policy.h"

namespace spillway::policies {

// Follows a plan. A step that does not fit under it runs out of memory.
class StepExecutor final : public Policy {
 public:
  // REQUIRES: the plan is for the trace that `places` is about.
  StepExecutor(const StepPlan& plan, const StepPlaces& places, size_t ops);

  bool LivesOutside(const Trace& trace, TensorId tensor) override;
  void BeforeOp(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;

 private:
  // The moves before an op and after it.
  struct Moves {
    bool hook = false;                               // a hook runs before the op
    std::vector<TensorId> released;                  // before
    std::vector<VerbCall> prefetched;                // before
    std::vector<TensorId> dropped, evicted, copied;  // after
    // These are given up as soon as the storages recomputed for the op have read them.
    std::vector<TensorId> read;
  };
  // Gives up storages that are on the device and can come back.
  static void GiveUp(PolicyContext& context, const std::vector<TensorId>& storages);

  std::vector<Moves> moves_;
  const std::vector<TensorId> state_;  // on the host
  std::vector<VerbCall> late_;         // prefetches for which there was no room
};

// Returns a policy that makes a trial run of `policy` and carries its decisions out. A
// `StepExecutor` does nothing else, and is returned as it is. A policy that runs another trace than
// the given one throws `PolicyError`.
std::unique_ptr<Policy> CarriedOut(std::unique_ptr<Policy> policy);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_EXECUTOR_H_
