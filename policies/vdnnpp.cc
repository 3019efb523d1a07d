// vDNN++ (Shriram et al., IPDPS 2019): vDNN whose computation never waits for a copy as such.
//
// What is offloaded and when it is prefetched is vDNN's (section II-B; vdnn_layers.h), `offload`
// says of which layers. Nothing is fenced (section IV-A): an op waits for a copy only where the
// copy brings its own input, or where its memory is still being copied from.
//
// `release=eager` gives X back with the step that offloads it, as vDNN does: in issue order, which
// is the sequence of requests that the paper's Tables II and V count. `release=lazy` keeps X until
// a request finds no room, then gives back the oldest first, and the rest at the end of forward; so
// memory that is there is used before memory that is still being copied from. Lazy release leaves
// another pattern of holes for backward and may not fit where eager release does (the paper's
// VGG-16(64) aconv(p)): `release=auto` tries both and takes lazy unless eager is faster or alone
// fits.
//
// `order` is the paper's prefetch-first or derivative-first and `hint` its high-end allocation
// (section IV-B). The paper's text sends tensors that leave to the high end of the arena
// (`offloaded`), its code and Table V those that stay (`kept`).
//
// `offload=dyn` tries configurations with profiling passes and keeps the first that fits.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/builtin.h"
#include "policies/kernel_choice.h"
#include "policies/vdnn_layers.h"
#include "sim/core/report.h"

namespace spillway {
namespace {

enum class ReleaseTime : uint8_t { kEager, kLazy };
enum class HighEnd : uint8_t { kNothing, kKept, kOffloaded };

struct Config {
  OffloadSet set = OffloadSet::kConv;
  KernelChoice kernels = KernelChoice::kPerformance;
  PlacementOrder order = PlacementOrder::kDerivativeFirst;
  HighEnd high_end = HighEnd::kNothing;
  ReleaseTime release = ReleaseTime::kEager;
};

class StaticPolicy final : public Policy {
 public:
  explicit StaticPolicy(const Config& config) : config_(config) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    layers_.Plan(trace, context.liveness(), config_.set);
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      if (trace.ops[i].phase == Phase::kForward) last_forward_ = static_cast<OpId>(i);
    }
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (op == OpId{0}) {
      layers_.BeginIteration();
      unreleased_.clear();
    }
    if (config_.order == PlacementOrder::kPrefetchFirst) PrefetchFor(context, op);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return ChooseByRule(config_.kernels, context, op);
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (config_.order == PlacementOrder::kDerivativeFirst) PrefetchFor(context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    VdnnLayers::Layer* layer = layers_.OffloadedWith(op);
    if (layer == nullptr) return;
    for (const TensorId input : layer->inputs) {
      if (!context.Offload(input)) continue;
      layer->offloaded = true;
      unreleased_.push_back(input);
    }
    if (config_.release == ReleaseTime::kLazy && op != last_forward_) return;
    for (const TensorId input : unreleased_) context.Release(input);
    unreleased_.clear();
  }

  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override {
    const TensorKind kind = context.trace().tensor(tensor).kind;
    if (kind != TensorKind::kActivation && kind != TensorKind::kInput) return Hint::kLow;
    const bool leaves = layers_.IsOffloaded(context.liveness().Root(tensor));
    const bool high = config_.high_end == HighEnd::kKept        ? !leaves
                      : config_.high_end == HighEnd::kOffloaded ? leaves
                                                                : false;
    return high ? Hint::kHigh : Hint::kLow;
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    for (auto oldest = unreleased_.begin(); oldest != unreleased_.end(); ++oldest) {
      if (!context.Release(*oldest)) continue;
      unreleased_.erase(oldest);
      return true;
    }
    return false;
  }

 private:
  void PrefetchFor(PolicyContext& context, OpId op) {
    if (VdnnLayers::Layer* layer = layers_.FindPrefetchLayer(op)) {
      VdnnLayers::Prefetch(context, *layer);
    }
  }

  const Config config_;
  VdnnLayers layers_;
  OpId last_forward_{};
  std::vector<TensorId> unreleased_;  // offloaded and still on the device, oldest first
};

// Chooses among static configurations in `Plan` and then acts as that.
class ChoosingPolicy final : public Policy {
 public:
  // Without `set`: all that `dyn` tries. Without `release`: the better of both.
  ChoosingPolicy(const Config& config, std::optional<OffloadSet> set,
                 std::optional<ReleaseTime> release)
      : config_(config), set_(set), release_(release) {}

  void Plan(PolicyContext& context) override {
    chosen_ = std::make_unique<StaticPolicy>(
        set_ ? BestRelease(context, *set_, config_.kernels).config : Dynamic(context));
    chosen_->Plan(context);
  }

  void BeforeOp(PolicyContext& context, OpId op) override { chosen_->BeforeOp(context, op); }
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chosen_->ChooseKernels(context, op);
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override {
    chosen_->BeforeLaunch(context, op);
  }
  void AfterOp(PolicyContext& context, OpId op) override { chosen_->AfterOp(context, op); }
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override {
    // Parameters are placed before the plan; no configuration hints at them.
    return chosen_ ? chosen_->PlacementHint(context, tensor) : Hint::kLow;
  }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    return chosen_ && chosen_->OnAllocFailure(context, size);
  }

 private:
  struct Attempt {
    Config config;
    bool fits = false;
    Duration iteration;  // meaningful if it fits
  };

  static Attempt TryOut(PolicyContext& context, const Config& config) {
    StaticPolicy policy(config);
    const Report report = context.WhatIf(policy);
    return {config, report.fits(), report.metrics.iteration};
  }

  Attempt BestRelease(PolicyContext& context, OffloadSet set, KernelChoice kernels) const {
    Config eager = config_;
    eager.set = set;
    eager.kernels = kernels;
    eager.release = ReleaseTime::kEager;
    Config lazy = eager;
    lazy.release = ReleaseTime::kLazy;
    if (release_) return TryOut(context, *release_ == ReleaseTime::kLazy ? lazy : eager);
    const Attempt with_eager = TryOut(context, eager);
    if (set == OffloadSet::kNone) return with_eager;  // there is nothing to release
    const Attempt with_lazy = TryOut(context, lazy);
    const bool slower = with_eager.fits && with_lazy.iteration > with_eager.iteration;
    return with_lazy.fits && !slower ? with_lazy : with_eager;
  }

  // The paper's order: nothing offloaded, then more and more, with the fastest algorithms; then the
  // greedy downgrade of each layer that would not fit; then the least workspace.
  Config Dynamic(PolicyContext& context) const {
    struct Pass {
      OffloadSet set;
      KernelChoice kernels;
    };
    constexpr Pass kPasses[] = {
        {OffloadSet::kNone, KernelChoice::kPerformance},
        {OffloadSet::kAlternateConv, KernelChoice::kPerformance},
        {OffloadSet::kConv, KernelChoice::kPerformance},
        {OffloadSet::kAll, KernelChoice::kPerformance},
        {OffloadSet::kConv, KernelChoice::kGreedy},
        {OffloadSet::kAll, KernelChoice::kGreedy},
        {OffloadSet::kConv, KernelChoice::kMemory},
    };
    const Attempt baseline = BestRelease(context, OffloadSet::kAll, KernelChoice::kMemory);
    if (!baseline.fits) return baseline.config;
    for (const Pass& pass : kPasses) {
      const Attempt attempt = BestRelease(context, pass.set, pass.kernels);
      // A pass that fits is adopted, but never one that is slower than what is known to work.
      if (attempt.fits && attempt.iteration <= baseline.iteration) return attempt.config;
    }
    return baseline.config;
  }

  const Config config_;
  const std::optional<OffloadSet> set_;
  const std::optional<ReleaseTime> release_;
  std::unique_ptr<StaticPolicy> chosen_;
};

}  // namespace

std::unique_ptr<Policy> MakeVdnnppPolicy(Params& params) {
  Config config;
  const std::string offload =
      params.Choice("offload", "dyn", {"all", "conv", "aconv", "dyn"},
                    "whose inputs leave: all feature extraction layers, convolutions, every other "
                    "convolution, or what profiling passes choose (algorithms, too)");
  config.kernels = ReadKernelChoice(params);
  config.order = ReadPlacementOrder(params);
  const std::string release =
      params.Choice("release", "auto", {"auto", "lazy", "eager"},
                    "when an offloaded X is given back: where memory is short and at the end of "
                    "forward, at the end of its step, or the better of both");
  const std::string hint =
      params.Choice("hint", "none", {"none", "kept", "offloaded"},
                    "which activations go to the high end of the arena: those that stay on the "
                    "device (the authors' code) or those that leave (the paper's text)");
  config.high_end = hint == "kept"        ? HighEnd::kKept
                    : hint == "offloaded" ? HighEnd::kOffloaded
                                          : HighEnd::kNothing;
  std::optional<OffloadSet> set;
  if (offload == "all") set = OffloadSet::kAll;
  if (offload == "conv") set = OffloadSet::kConv;
  if (offload == "aconv") set = OffloadSet::kAlternateConv;
  std::optional<ReleaseTime> when;
  if (release == "lazy") when = ReleaseTime::kLazy;
  if (release == "eager") when = ReleaseTime::kEager;
  if (set && when) {
    config.set = *set;
    config.release = *when;
    return std::make_unique<StaticPolicy>(config);
  }
  return std::make_unique<ChoosingPolicy>(config, set, when);
}

}  // namespace spillway
