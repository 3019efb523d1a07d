#include "policies/plugin/guard.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "policies/plugin/crash.h"
#include "sim/core/forwarding_policy_context.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

// The context of a guarded policy. It checks ids, and remembers the exception by which the runtime
// ends the run through the policy.
class GuardedContext final : public ForwardingPolicyContext {
 public:
  using ForwardingPolicyContext::ForwardingPolicyContext;

  // Returns true inside a handler of the exception that the runtime threw through the policy.
  bool IsUnwinding() const {
    return unwinding_ != nullptr && unwinding_ == std::current_exception();
  }

  bool Do(const VerbCall& call) override {
    Known(call.tensor, Name(call.verb));
    return Base::Do(call);
  }
  bool Reserve(std::span<const TensorId> tensors, Bytes at_least) override {
    for (const TensorId tensor : tensors) Known(tensor, "Reserve");
    return Remembering([&] { return Base::Reserve(tensors, at_least); });
  }
  bool ReserveWorkspace(Bytes size) override {
    return Remembering([&] { return Base::ReserveWorkspace(size); });
  }
  bool ReserveWorkspaceFor(OpId op, Bytes size) override {
    if (Index(op) >= trace().ops.size()) {
      throw PolicyError(fmt::format("ReserveWorkspaceFor: op {}, but the trace has {} ops",
                                    Index(op), trace().ops.size()));
    }
    return Remembering([&] { return Base::ReserveWorkspaceFor(op, size); });
  }
  Residency Where(TensorId tensor) const override { return Base::Where(Known(tensor, "Where")); }
  bool Pinned(TensorId tensor) const override { return Base::Pinned(Known(tensor, "Pinned")); }
  std::optional<OpId> NextUse(TensorId tensor) const override {
    return Base::NextUse(Known(tensor, "NextUse"));
  }
  std::span<const Kernel> kernels(OpId op, size_t slot) const override {
    if (Index(op) >= trace().ops.size() || slot >= trace().op(op).slots.size()) {
      throw PolicyError(
          fmt::format("kernels: the trace has no op {} with a slot {}", Index(op), slot));
    }
    return Base::kernels(op, slot);
  }

 private:
  using Base = ForwardingPolicyContext;

  TensorId Known(TensorId tensor, std::string_view verb) const {
    const size_t count = trace().tensors.size();
    if (Index(tensor) >= count) {
      throw PolicyError(
          fmt::format("{}: tensor {}, but the trace has {} tensors", verb, Index(tensor), count));
    }
    return tensor;
  }

  // Runs a verb that allocates. If the run does not fit, the runtime ends it with an exception that
  // is no `Error`; this remembers it.
  template <typename Verb>
  bool Remembering(Verb verb) {
    try {
      return verb();
    } catch (const Error&) {
      throw;
    } catch (...) {
      unwinding_ = std::current_exception();
      throw;
    }
  }

  std::exception_ptr unwinding_;
};

}  // namespace

void RethrowAsOwn(const std::string& where) {
  try {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(error.what());
  } catch (const InputError& error) {
    throw InputError(error.what());
  } catch (const PolicyError& error) {
    throw PolicyError(error.what());
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(error.what());
  } catch (const std::exception& error) {
    throw PolicyError(fmt::format("{} failed: {}", where, error.what()));
  } catch (...) {
    throw PolicyError(
        fmt::format("{} failed: it threw something that is not a std::exception", where));
  }
}

GuardedPolicy::GuardedPolicy(std::string name, std::unique_ptr<Policy> policy,
                             std::shared_ptr<const void> keep)
    : name_(std::move(name)), keep_(std::move(keep)), policy_(std::move(policy)) {
  SPILLWAY_CHECK(policy_ != nullptr);
}

GuardedPolicy::~GuardedPolicy() {
  const InHook record(name_.c_str(), "destructor");
  policy_.reset();
}

// Calls `hook` with a `GuardedContext`. If it throws, `place` says for which op it was called.
template <typename Hook, typename Place>
auto GuardedPolicy::Call(const char* hook_name, PolicyContext& context, Hook hook, Place place) {
  const char* op = current_.empty() ? nullptr : context.trace().op(current_.back()).name.c_str();
  const InHook record(name_.c_str(), hook_name, op);
  GuardedContext guarded(context);
  try {
    return hook(guarded);
  } catch (...) {
    if (guarded.IsUnwinding()) throw;
    RethrowAsOwn(fmt::format("policy '{}', {}{}", name_, hook_name, place()));
  }
}

Preparation GuardedPolicy::Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                                   const TrialRun& trial, const std::string& plan) {
  const InHook record(name_.c_str(), "Prepare");
  const std::string where = fmt::format("policy '{}', Prepare({})", name_, trace.name);
  Preparation prepared;
  try {
    prepared = policy_->Prepare(trace, device, cost, trial, plan);
  } catch (...) {
    RethrowAsOwn(where);
  }
  if (prepared.memory <= Bytes(0) || prepared.memory > device.memory) {
    throw PolicyError(fmt::format("{} gave {} bytes of memory: 1 to {} are valid", where,
                                  prepared.memory.count(), device.memory.count()));
  }
  if (prepared.trace) {
    try {
      prepared.trace->Validate();
    } catch (const InputError& error) {
      throw PolicyError(fmt::format("{} made an invalid trace: {}", where, error.what()));
    }
  }
  return prepared;
}

bool GuardedPolicy::LivesOutside(const Trace& trace, TensorId tensor) {
  const InHook record(name_.c_str(), "LivesOutside");
  try {
    return policy_->LivesOutside(trace, tensor);
  } catch (...) {
    RethrowAsOwn(fmt::format("policy '{}', LivesOutside({})", name_, trace.tensor(tensor).name));
  }
}

void GuardedPolicy::Plan(PolicyContext& context) {
  Call(
      "Plan", context, [&](PolicyContext& guarded) { policy_->Plan(guarded); },
      [] { return std::string(); });
}

void GuardedPolicy::BeforeOp(PolicyContext& context, OpId op) {
  current_.push_back(op);
  Call(
      "BeforeOp", context, [&](PolicyContext& guarded) { policy_->BeforeOp(guarded, op); },
      [&] { return NameOf(context, op); });
}

KernelPlan GuardedPolicy::ChooseKernels(PolicyContext& context, OpId op) {
  return Call(
      "ChooseKernels", context,
      [&](PolicyContext& guarded) { return policy_->ChooseKernels(guarded, op); },
      [&] { return NameOf(context, op); });
}

void GuardedPolicy::BeforeLaunch(PolicyContext& context, OpId op) {
  Call(
      "BeforeLaunch", context, [&](PolicyContext& guarded) { policy_->BeforeLaunch(guarded, op); },
      [&] { return NameOf(context, op); });
}

void GuardedPolicy::AfterOp(PolicyContext& context, OpId op) {
  Call(
      "AfterOp", context, [&](PolicyContext& guarded) { policy_->AfterOp(guarded, op); },
      [&] { return NameOf(context, op); });
  current_.pop_back();
}

Hint GuardedPolicy::PlacementHint(const PolicyContext& context, TensorId tensor) {
  // The hook gets the context as const, so that it cannot call a verb.
  return Call(
      "PlacementHint", const_cast<PolicyContext&>(context),
      [&](const PolicyContext& guarded) { return policy_->PlacementHint(guarded, tensor); },
      [&] { return fmt::format("({}){}", context.trace().tensor(tensor).name, During(context)); });
}

bool GuardedPolicy::OnAllocFailure(PolicyContext& context, Bytes size) {
  return Call(
      "OnAllocFailure", context,
      [&](PolicyContext& guarded) { return policy_->OnAllocFailure(guarded, size); },
      [&] { return fmt::format("({}){}", FormatBytes(size), During(context)); });
}

std::string GuardedPolicy::ExportPlan() const {
  const InHook record(name_.c_str(), "ExportPlan");
  try {
    return policy_->ExportPlan();
  } catch (...) {
    RethrowAsOwn(fmt::format("policy '{}', ExportPlan", name_));
  }
}

std::string GuardedPolicy::NameOf(const PolicyContext& context, OpId op) {
  return fmt::format("({})", context.trace().op(op).name);
}

std::string GuardedPolicy::During(const PolicyContext& context) const {
  if (current_.empty()) return " before the first op";
  return fmt::format(" at op {}", context.trace().op(current_.back()).name);
}

}  // namespace spillway::policies
