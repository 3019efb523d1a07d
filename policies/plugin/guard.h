// A policy that passes its hooks on to another policy. It turns exceptions that leave a hook into
// one of Spillway's own errors, and rejects ids that the trace does not have.
//
// The command line runs every policy inside a guard. A bug in a plugin then ends in a message that
// names policy, hook and op, with exit code 4. Crashes and endless loops are no exceptions: a
// plugin therefore runs in a process of its own (experiments/run/isolation.h). The guard decides
// nothing: the run is the same without it.
//
//   the hook throws                             the guard throws
//   UsageError, InputError, PolicyError,        an equal error that the guard has made, because an
//     EnvironmentError                          object of a plugin must not outlive the plugin
//   the exception by which the runtime ends a   the same exception
//     run that does not fit, from `Reserve`
//   any other exception                         a PolicyError that names policy, hook and op

#ifndef SPILLWAY_POLICIES_PLUGIN_GUARD_H_
#define SPILLWAY_POLICIES_PLUGIN_GUARD_H_

#include <memory>
#include <string>
#include <vector>

#include "sim/core/policy.h"

namespace spillway::policies {

class GuardedPolicy final : public Policy {
 public:
  // `name` is the policy's name in messages. `keep` is the plugin whose code the policy runs; it is
  // held until the policy has been destroyed. REQUIRES: policy is not null.
  GuardedPolicy(std::string name, std::unique_ptr<Policy> policy,
                std::shared_ptr<const void> keep = nullptr);
  ~GuardedPolicy() override;

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
  std::unique_ptr<Policy> policy_;
  std::vector<OpId> current_;  // the ops between BeforeOp and AfterOp, the innermost last
};

// Throws the current exception again as one of Spillway's own errors, by the table above. `where`
// is the call in words, for example "policy 'x', Plan". REQUIRES: the caller is a handler of an
// exception that code of a policy has thrown.
[[noreturn]] void RethrowAsOwn(const std::string& where);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLUGIN_GUARD_H_
