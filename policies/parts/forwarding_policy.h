// A policy that passes every hook on to another policy, `chosen_`. A policy that chooses among
// others derives from it and overrides `Prepare`.

#ifndef SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_
#define SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_

#include <memory>
#include <string>

#include "sim/core/policy.h"

namespace spillway::policies {

class ForwardingPolicy : public Policy {
 public:
  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    return chosen_->Prepare(trace, device, cost, trial, plan);
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
  std::string ExportPlan() const override { return chosen_->ExportPlan(); }

 protected:
  // Set by the constructor or by `Prepare` of the derived class.
  std::unique_ptr<Policy> chosen_;
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_FORWARDING_POLICY_H_
