// A policy made of functions, for tests that call one verb at one hook.

#ifndef SPILLWAY_TESTS_TESTING_SCRIPTED_POLICY_H_
#define SPILLWAY_TESTS_TESTING_SCRIPTED_POLICY_H_

#include <functional>
#include <string>

#include "sim/core/policy.h"
#include "traces/base/error.h"

namespace spillway::testing {

class ScriptedPolicy final : public Policy {
 public:
  using Hook = std::function<void(PolicyContext&, const std::string& op)>;

  Hook plan, before, before_launch, after;
  std::function<KernelPlan(PolicyContext&, OpId)> choose;
  std::function<bool(PolicyContext&, Bytes)> on_failure;

  void Plan(PolicyContext& context) override { Call(plan, context, OpId{0}); }
  void BeforeOp(PolicyContext& context, OpId op) override { Call(before, context, op); }
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return choose ? choose(context, op) : KernelPlan{};
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override { Call(before_launch, context, op); }
  void AfterOp(PolicyContext& context, OpId op) override { Call(after, context, op); }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    return on_failure && on_failure(context, size);
  }

 private:
  static void Call(const Hook& hook, PolicyContext& context, OpId op) {
    if (hook) hook(context, context.trace().op(op).name);
  }
};

inline TensorId Find(const PolicyContext& context, const std::string& name) {
  const auto& tensors = context.trace().tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return static_cast<TensorId>(i);
  }
  throw InputError("no tensor " + name);
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_SCRIPTED_POLICY_H_
