// A policy around another one that turns whatever leaves its hooks by exception into one of
// Spillway's own errors, and catches ids that the trace does not have.
//
// The command line runs every policy inside one, so that a bug in a plugin ends in a message that
// names policy, hook and op, with exit code 4, and never in a crash. It decides nothing: the run is
// the same with and without it.
//
//   thrown by the hook                          becomes
//   UsageError, InputError, PolicyError,        an equal error, made here: an object of a plugin's
//     EnvironmentError                          own must not outlive the plugin
//   anything else                               PolicyError naming policy, hook and op
//   what the runtime ends a run with that       passes as it is
//     does not fit, out of `Reserve`

#ifndef SPILLWAY_POLICIES_PLUGIN_GUARD_H_
#define SPILLWAY_POLICIES_PLUGIN_GUARD_H_

#include <memory>
#include <string>
#include <vector>

#include "sim/core/policy.h"

namespace spillway {

class GuardedPolicy final : public Policy {
 public:
  // `name` stands in messages. `keep` is held until after the policy is gone: the plugin whose code
  // it runs. REQUIRES: policy is not null.
  GuardedPolicy(std::string name, std::unique_ptr<Policy> policy,
                std::shared_ptr<const void> keep = nullptr);

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override;
  bool LivesOutside(const Trace& trace, TensorId tensor) override;
  void Plan(PolicyContext& context) override;
  void BeforeOp(PolicyContext& context, OpId op) override;
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override;
  bool OnAllocFailure(PolicyContext& context, Bytes size) override;
  std::string ExportPlan() const override;

 private:
  template <typename Hook, typename Place>
  auto Call(const char* hook_name, PolicyContext& context, Hook hook, Place place);
  static std::string NameOf(const PolicyContext& context, OpId op);  // "(conv1.fwd)"
  std::string During(const PolicyContext& context) const;            // " at op conv1.fwd"

  const std::string name_;
  const std::shared_ptr<const void> keep_;  // declared before the policy: destroyed after it
  const std::unique_ptr<Policy> policy_;
  std::vector<OpId> current_;  // between BeforeOp and AfterOp, innermost last
};

// Inside a handler of code that belongs to a policy: throws the current exception again as one of
// Spillway's own, as above. `where` says what was called: "policy 'x', Plan".
[[noreturn]] void RethrowAsOwn(const std::string& where);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLUGIN_GUARD_H_
