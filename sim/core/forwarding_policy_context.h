// A policy context that passes every call on to another context. A wrapper derives from it and
// overrides the calls that it changes.

#ifndef SPILLWAY_SIM_CORE_FORWARDING_POLICY_CONTEXT_H_
#define SPILLWAY_SIM_CORE_FORWARDING_POLICY_CONTEXT_H_

#include "sim/core/policy.h"

namespace spillway::sim {

class ForwardingPolicyContext : public PolicyContext {
 public:
  // REQUIRES: `context` outlives the wrapper.
  explicit ForwardingPolicyContext(PolicyContext& context) : context_(context) {}

  bool Do(const VerbCall& call) override { return context_.Do(call); }
  void Fence() override { context_.Fence(); }
  bool Reserve(std::span<const TensorId> tensors, Bytes at_least) override {
    return context_.Reserve(tensors, at_least);
  }
  bool ReserveWorkspace(Bytes size) override { return context_.ReserveWorkspace(size); }
  bool ReserveWorkspaceFor(OpId op, Bytes size) override {
    return context_.ReserveWorkspaceFor(op, size);
  }
  Residency Where(TensorId tensor) const override { return context_.Where(tensor); }
  bool Pinned(TensorId tensor) const override { return context_.Pinned(tensor); }
  std::optional<OpId> NextUse(TensorId tensor) const override { return context_.NextUse(tensor); }
  MemoryStats Stats() const override { return context_.Stats(); }
  const Trace& trace() const override { return context_.trace(); }
  const Liveness& liveness() const override { return context_.liveness(); }
  const Device& device() const override { return context_.device(); }
  const CostModel& cost() const override { return context_.cost(); }
  std::span<const Kernel> kernels(OpId op, size_t slot) const override {
    return context_.kernels(op, slot);
  }
  std::optional<OpId> recomputing() const override { return context_.recomputing(); }

 private:
  PolicyContext& context_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_FORWARDING_POLICY_CONTEXT_H_
