// vDNN (Rhu et al., MICRO 2016): offload the inputs of layers in forward, prefetch them in
// backward.
//
// Static policies (section III-C): `vdnn-conv` offloads the inputs X of convolutions, `vdnn-all`
// those of all feature extraction layers (convolution, pooling, normalisation, concatenation,
// dropout; activations work in place and classifier layers are left alone). X is offloaded by its
// last consumer in forward, while that layer computes, and released at its end; the compute stream
// waits for the copy there. At each backward step the search of Fig. 10 finds at most one layer
// whose X to prefetch; the copy overlaps the step and the compute stream waits for it at its end.
// The paper leaves open whether X or the step's own tensors are placed first. By default the step's
// come first: a prefetch that finds no room is tried again at the next step, whereas a step that
// finds none ends the run.
//
// `vdnn-dyn` tries configurations with profiling passes and keeps the first that fits.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/builtin.h"
#include "policies/kernel_choice.h"
#include "sim/core/report.h"

namespace spillway {
namespace {

enum class OffloadSet : uint8_t { kNone, kConv, kAll };

// Which of a prefetched X and the tensors of the step that it overlaps is placed first.
enum class Order : uint8_t { kPrefetchFirst, kDerivativeFirst };

bool IsOffloadLayer(OffloadSet set, OpType type) {
  switch (type) {
    case OpType::kConv2d:
      return set != OffloadSet::kNone;
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
    case OpType::kLrn:
    case OpType::kBatchNorm:
    case OpType::kDropout:
    case OpType::kConcat:
    case OpType::kAdd:
      return set == OffloadSet::kAll;
    default:
      return false;
  }
}

class VdnnPolicy final : public Policy {
 public:
  VdnnPolicy(OffloadSet set, KernelChoice kernels, Order order = Order::kDerivativeFirst)
      : set_(set), kernels_(kernels), order_(order) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    for (const Layer& layer : trace.layers) {
      layers_.push_back({{}, layer.type == OpType::kConv2d, false, false});
    }
    for (const Op& op : trace.ops) {
      steps_.push_back({op.phase, static_cast<uint32_t>(Index(op.layer))});
      if (op.phase != Phase::kForward || !IsOffloadLayer(set_, op.type)) continue;
      for (const TensorId input : op.inputs) {
        const TensorId storage = liveness.Root(input);
        if (const auto last = LastForwardUse(trace, liveness, storage)) {
          AddUnique(layers_[Index(trace.op(*last).layer)].inputs, storage);
        }
      }
    }
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (op == OpId{0}) {
      for (LayerState& layer : layers_) layer.offloaded = layer.prefetched = false;
    }
    if (order_ == Order::kPrefetchFirst) PrefetchFor(context, op);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return ChooseByRule(kernels_, context, op);
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (order_ == Order::kDerivativeFirst) PrefetchFor(context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    const Step step = steps_[Index(op)];
    if (step.phase == Phase::kForward) {
      LayerState& layer = layers_[step.layer];
      for (const TensorId input : layer.inputs) {
        if (!context.Offload(input)) continue;
        context.Release(input);
        layer.offloaded = true;
        fence_ = true;
      }
    }
    if (std::exchange(fence_, false)) context.Fence();
  }

 private:
  // What every hook asks of an op.
  struct Step {
    Phase phase = Phase::kForward;
    uint32_t layer = 0;
  };
  struct LayerState {
    std::vector<TensorId> inputs;  // offloaded at the end of the layer's forward step
    bool is_conv = false;
    bool offloaded = false;
    bool prefetched = false;
  };

  // The last forward op that uses an activation or the image, if a later phase uses it again.
  static std::optional<OpId> LastForwardUse(const Trace& trace, const Liveness& liveness,
                                            TensorId storage) {
    const TensorKind kind = trace.tensor(storage).kind;
    if (kind != TensorKind::kActivation && kind != TensorKind::kInput) return std::nullopt;
    std::optional<OpId> last;
    for (const OpId use : liveness.Uses(storage)) {
      if (trace.op(use).phase != Phase::kForward) return last;
      last = use;
    }
    return std::nullopt;
  }

  static void AddUnique(std::vector<TensorId>& list, TensorId id) {
    for (const TensorId present : list) {
      if (present == id) return;
    }
    list.push_back(id);
  }

  void PrefetchFor(PolicyContext& context, OpId op) {
    const Step step = steps_[Index(op)];
    if (step.phase != Phase::kBackward) return;
    LayerState* layer = FindPrefetchLayer(step.layer);
    if (layer == nullptr) return;
    layer->prefetched = true;
    for (const TensorId input : layer->inputs) {
      if (context.Where(input) != Residency::kHost) continue;
      if (context.Prefetch(input)) {
        fence_ = true;
      } else {
        layer->prefetched = false;
      }
    }
  }

  // Fig. 10: the nearest layer below `current` that is offloaded and not yet prefetched, looking no
  // further than the next convolution. nullptr if there is none.
  LayerState* FindPrefetchLayer(size_t current) {
    for (size_t id = current; id-- > 0;) {
      LayerState& layer = layers_[id];
      if (layer.offloaded && !layer.prefetched) return &layer;
      if (layer.is_conv) return nullptr;
    }
    return nullptr;
  }

  const OffloadSet set_;
  const KernelChoice kernels_;
  const Order order_;
  std::vector<Step> steps_;  // by op
  std::vector<LayerState> layers_;
  bool fence_ = false;  // a copy was issued for the current step
};

// Chooses a static configuration in `Plan` and then acts as that.
class VdnnDynPolicy final : public Policy {
 public:
  void Plan(PolicyContext& context) override {
    const Config least_memory{OffloadSet::kAll, KernelChoice::kMemory};
    const Report baseline = TryOut(context, least_memory);
    Config choice = least_memory;
    if (baseline.fits()) {
      // The paper's order: nothing offloaded, then more and more, with the fastest algorithms; then
      // the greedy downgrade of each layer that would not fit.
      constexpr std::array kPasses{
          Config{OffloadSet::kNone, KernelChoice::kPerformance},
          Config{OffloadSet::kConv, KernelChoice::kPerformance},
          Config{OffloadSet::kAll, KernelChoice::kPerformance},
          Config{OffloadSet::kConv, KernelChoice::kGreedy},
          Config{OffloadSet::kAll, KernelChoice::kGreedy},
      };
      for (const Config& pass : kPasses) {
        const Report report = TryOut(context, pass);
        // A pass that fits is adopted, but never one that is slower than what is known to work.
        if (!report.fits() || report.metrics.iteration > baseline.metrics.iteration) continue;
        choice = pass;
        break;
      }
    }
    chosen_ = Make(choice);
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

 private:
  struct Config {
    OffloadSet set;
    KernelChoice kernels;
  };

  static std::unique_ptr<VdnnPolicy> Make(const Config& config) {
    return std::make_unique<VdnnPolicy>(config.set, config.kernels);
  }

  static Report TryOut(PolicyContext& context, const Config& config) {
    return context.WhatIf(*Make(config));
  }

  std::unique_ptr<VdnnPolicy> chosen_;
};

std::unique_ptr<Policy> MakeStatic(OffloadSet set, Params& params) {
  const KernelChoice kernels = ReadKernelChoice(params);
  const std::string order =
      params.Choice("order", "derivative-first", {"derivative-first", "prefetch-first"},
                    "what is placed first: the tensors of a backward step, or the X it prefetches");
  return std::make_unique<VdnnPolicy>(
      set, kernels, order == "prefetch-first" ? Order::kPrefetchFirst : Order::kDerivativeFirst);
}

}  // namespace

std::unique_ptr<Policy> MakeVdnnAllPolicy(Params& params) {
  return MakeStatic(OffloadSet::kAll, params);
}

std::unique_ptr<Policy> MakeVdnnConvPolicy(Params& params) {
  return MakeStatic(OffloadSet::kConv, params);
}

std::unique_ptr<Policy> MakeVdnnDynPolicy(Params&) { return std::make_unique<VdnnDynPolicy>(); }

}  // namespace spillway
