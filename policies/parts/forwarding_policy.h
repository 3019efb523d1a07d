// A policy that acts as another one, which it may choose as late as in `LimitMemory`: what policies
// that choose derive from.

#ifndef SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_
#define SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_

#include <memory>
#include <optional>

#include "sim/core/policy.h"

namespace spillway {

class ForwardingPolicy : public Policy {
 public:
  std::optional<Trace> Rewrite(const Trace& trace, const Device& device,
                               const CostModel& cost) override {
    return chosen_ ? chosen_->Rewrite(trace, device, cost) : std::nullopt;
  }
  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    return chosen_->LivesOutside(trace, tensor);
  }
  void Plan(PolicyContext& context) override { chosen_->Plan(context); }
  void BeforeOp(PolicyContext& context, OpId op) override { chosen_->BeforeOp(context, op); }
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chosen_->ChooseKernels(context, op);
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override {
    chosen_->BeforeLaunch(context, op);
  }
  void AfterOp(PolicyContext& context, OpId op) override { chosen_->AfterOp(context, op); }
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override {
    return chosen_->PlacementHint(context, tensor);
  }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    return chosen_->OnAllocFailure(context, size);
  }

 protected:
  // Set by `LimitMemory`, before a run calls any other hook. Until then, asked what it would make
  // of a trace, the policy leaves it alone.
  std::unique_ptr<Policy> chosen_;
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_
