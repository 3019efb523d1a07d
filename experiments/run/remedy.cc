#include "experiments/run/remedy.h"

#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/other_links.h"
#include "experiments/run/prepare.h"
#include "sim/core/forwarding_policy_context.h"
#include "sim/core/policy.h"

namespace spillway::lab {
namespace {

// A context that may ignore fences, and that may refuse to move one storage off the device.
class RemediedContext final : public ForwardingPolicyContext {
 public:
  // Ignores fences unless `fences` is true. Refuses to offload or evict the storage `kept`.
  RemediedContext(PolicyContext& context, bool fences, std::optional<TensorId> kept)
      : ForwardingPolicyContext(context), fences_(fences), kept_(kept) {}

  bool Do(const VerbCall& call) override {
    const bool leaves = call.verb == Verb::kOffload || call.verb == Verb::kEvict;
    return !(leaves && IsKept(call.tensor)) && ForwardingPolicyContext::Do(call);
  }
  void Fence() override {
    if (fences_) ForwardingPolicyContext::Fence();
  }

 private:
  bool IsKept(TensorId tensor) const { return kept_ && liveness().Root(tensor) == *kept_; }

  const bool fences_;
  const std::optional<TensorId> kept_;
};

// A policy that decides like another policy, except for the one step or storage that the remedy
// changes.
class RemediedPolicy final : public Policy {
 public:
  RemediedPolicy(std::unique_ptr<Policy> policy, const StallRemedy& remedy)
      : policy_(std::move(policy)), remedy_(remedy) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    return policy_->Prepare(trace, device, cost, trial, plan);
  }
  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    return !(Kept() && *Kept() == tensor) && policy_->LivesOutside(trace, tensor);
  }
  void Plan(PolicyContext& context) override {
    RemediedContext inner = Within(context);
    policy_->Plan(inner);
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    RemediedContext inner = Within(context, op);
    policy_->BeforeOp(inner, op);
  }
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    RemediedContext inner = Within(context);
    return policy_->ChooseKernels(inner, op);
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override {
    RemediedContext inner = Within(context, op);
    policy_->BeforeLaunch(inner, op);
    if (StartsAt(context, op) && remedy_.direction == Direction::kToDevice) {
      context.Prefetch(remedy_.tensor);
    }
  }
  void AfterOp(PolicyContext& context, OpId op) override {
    // The copy waits only for the op that writes the tensor, which may be this op.
    if (StartsAt(context, op) && remedy_.direction == Direction::kToHost) {
      context.Offload(remedy_.tensor);
    }
    RemediedContext inner = Within(context, static_cast<OpId>(Index(op) + 1));
    policy_->AfterOp(inner, op);
  }
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override {
    return policy_->PlacementHint(context, tensor);
  }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    RemediedContext inner = Within(context);
    return policy_->OnAllocFailure(inner, size);
  }

 private:
  bool StartsAt(const PolicyContext& context, OpId op) const {
    return remedy_.kind == RemedyKind::kStartEarlier && op == remedy_.op && !context.recomputing();
  }

  std::optional<TensorId> Kept() const {
    return remedy_.kind == RemedyKind::kKeep ? std::optional(remedy_.tensor) : std::nullopt;
  }

  // Returns the context for a hook whose fences come before the op `next`.
  RemediedContext Within(PolicyContext& context, std::optional<OpId> next = std::nullopt) const {
    const bool fences = remedy_.kind != RemedyKind::kNoFence || next != remedy_.op ||
                        context.recomputing().has_value();
    return {context, fences, Kept()};
  }

  const std::unique_ptr<Policy> policy_;
  const StallRemedy remedy_;
};

Draft ChangedBy(const StallRemedy& remedy, Draft run) {
  if (remedy.kind == RemedyKind::kMoreMemory && run.memory != Bytes::Unlimited()) {
    run.memory += remedy.memory;
  } else if (remedy.kind == RemedyKind::kFasterLink) {
    return WithLink(std::move(run), remedy.direction, remedy.link);
  } else if (remedy.kind == RemedyKind::kFasterHost) {
    const auto scale = [&](Duration& time) {
      time = Duration::Picoseconds(
          std::llround(static_cast<double>(time.picoseconds()) * remedy.host));
    };
    scale(run.device.launch_overhead);
    if (run.device.library_call) scale(*run.device.library_call);
    auto trace = std::make_shared<Trace>(*run.trace);
    for (Op& op : trace->ops) {
      if (op.recorded) scale(op.recorded->host);
    }
    run.trace = std::move(trace);
  }
  return run;
}

}  // namespace

std::string_view Name(RemedyKind kind) {
  constexpr std::array<std::string_view, 6> kNames{"start_earlier", "more_memory", "faster_link",
                                                   "no_fence",      "faster_host", "keep"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<Duration> SimulateRemedy(const Case& asked, const Draft& draft,
                                       const StallRemedy& remedy) {
  Draft run = ChangedBy(remedy, draft.Prediction());
  run.policy = {draft.policy.name(), [policy = draft.policy, remedy] {
                  return std::make_unique<RemediedPolicy>(policy.Make(), remedy);
                }};
  const Report report = Run(Decide(asked, std::move(run))).report;
  if (!report.fits()) return std::nullopt;
  return report.metrics.iteration;
}

std::optional<HostRange> HostRangeOf(const Case& asked, const Draft& draft) {
  if (!draft.trace->recording || !draft.trace->recording->host_assumed) return std::nullopt;
  const auto with = [&](Duration host) {
    const double factor = host.seconds() / kOperatorTime.seconds();
    return SimulateRemedy(asked, draft, {.kind = RemedyKind::kFasterHost, .host = factor});
  };
  const std::optional<Duration> fastest = with(kFastestHost), slowest = with(kSlowestHost);
  return fastest && slowest ? std::optional<HostRange>({*fastest, *slowest}) : std::nullopt;
}

std::optional<HostRange> HostRangeOf(const Case& asked, const Inputs& inputs,
                                     const Outcome& outcome) {
  if (!outcome.trace->recording || outcome.report.out_of_memory) return std::nullopt;
  Draft run = inputs.DraftOf(asked);
  run.policy_plan = outcome.report.plan;
  return HostRangeOf(asked, run);
}

}  // namespace spillway::lab
