#include "tests/testing/runs.h"

#include <optional>
#include <string>
#include <utility>

#include "experiments/run/prepare.h"

namespace spillway::testing {
namespace {

class BorrowedPolicy final : public Policy {
 public:
  explicit BorrowedPolicy(Policy& policy) : policy_(policy) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    return policy_.Prepare(trace, device, cost, trial, plan);
  }
  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    return policy_.LivesOutside(trace, tensor);
  }
  void Plan(PolicyContext& context) override { policy_.Plan(context); }
  void BeforeOp(PolicyContext& context, OpId op) override { policy_.BeforeOp(context, op); }
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return policy_.ChooseKernels(context, op);
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override { policy_.BeforeLaunch(context, op); }
  void AfterOp(PolicyContext& context, OpId op) override { policy_.AfterOp(context, op); }
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override {
    return policy_.PlacementHint(context, tensor);
  }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    return policy_.OnAllocFailure(context, size);
  }
  std::string ExportPlan() const override { return policy_.ExportPlan(); }

 private:
  Policy& policy_;
};

}  // namespace

PolicyChoice Borrowed(Policy& policy) {
  return {"borrowed", [&policy] { return std::make_unique<BorrowedPolicy>(policy); }};
}

Outcome RunPolicy(Draft run, Policy& policy, const BackendFactories& backends) {
  run.policy = Borrowed(policy);
  return Run(Decide({}, std::move(run), backends), backends);
}

Outcome Simulate(const Draft& run, Policy& policy) { return RunPolicy(run.Prediction(), policy); }

}  // namespace spillway::testing
