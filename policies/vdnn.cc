// vDNN (Rhu et al., MICRO 2016): the inputs of layers are offloaded in forward and prefetched in
// backward.
//
// Static policies (section III-C): `vdnn-conv` offloads the inputs X of convolutions, and
// `vdnn-all` the inputs X of all feature extraction layers (convolution, pooling, normalisation,
// concatenation, dropout, but not activations, which work in place, and classifier layers). The
// last layer that reads X in forward offloads it while the layer computes, and releases it at its
// end, where the compute stream waits for the copy. At each backward step, the search of Fig. 10
// finds at most one layer whose X to prefetch. The copy overlaps the step, and the compute stream
// waits for it at the end of the step. The paper leaves open whether X or the step's own tensors
// are placed first. By default the step's tensors come first: a prefetch that finds no room is
// tried again at the next step, whereas a step that finds no room ends the run.
//
// `vdnn-aconv` offloads the inputs of every other convolution. vDNN++ (Shriram et al., IPDPS 2019,
// section II-B) adds it to vDNN's two policies.
//
// `vdnn-dyn` tries configurations in profiling passes and keeps the first that fits, as in the
// paper, which assumes that more offloading is slower. That need not hold where layers branch:
// `adopt=fastest` tries all passes.

#include <array>
#include <memory>
#include <utility>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/fastest.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/parts/vdnn_layers.h"
#include "policies/registry.h"
#include "sim/core/report.h"

namespace spillway::policies {
namespace {

class VdnnPolicy final : public Policy {
 public:
  VdnnPolicy(OffloadSet set, KernelChoice kernels, const KernelChooser& chooser,
             PlacementOrder order = PlacementOrder::kDerivativeFirst)
      : set_(set), kernels_(kernels), chooser_(chooser), order_(order) {}

  void Plan(PolicyContext& context) override {
    layers_.Plan(context.trace(), context.liveness(), set_);
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (op == OpId{0}) layers_.BeginIteration();
    if (order_ == PlacementOrder::kPrefetchFirst) PrefetchFor(context, op);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(kernels_, context, op);
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (order_ == PlacementOrder::kDerivativeFirst) PrefetchFor(context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    if (VdnnLayers::Layer* layer = layers_.OffloadedWith(op)) {
      for (const TensorId input : layer->inputs) {
        if (!context.Offload(input)) continue;
        context.Release(input);
        layer->offloaded = true;
        fence_ = true;
      }
    }
    if (std::exchange(fence_, false)) context.Fence();
  }

 private:
  void PrefetchFor(PolicyContext& context, OpId op) {
    VdnnLayers::Layer* layer = layers_.FindPrefetchLayer(op);
    if (layer != nullptr && VdnnLayers::Prefetch(context, *layer)) fence_ = true;
  }

  const OffloadSet set_;
  const KernelChoice kernels_;
  const KernelChooser chooser_;
  const PlacementOrder order_;
  VdnnLayers layers_;
  bool fence_ = false;  // a copy was issued for the current step
};

// Chooses a static configuration by profiling passes, and then acts as it.
class VdnnDynPolicy final : public ForwardingPolicy {
 public:
  enum class Adopt : uint8_t { kFirst, kFastest };

  VdnnDynPolicy(Adopt adopt, const KernelChooser& chooser) : adopt_(adopt), chooser_(chooser) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    Fastest choice{kPasses.size() - 1, device.memory};
    if (adopt_ == Adopt::kFirst) {
      choice.candidate = ChooseFirst(device, trial);
    } else {
      choice = ChooseFastest(trace, device, trial,
                             {kPasses.size(), [this](size_t pass) { return Make(pass); }, 0});
    }
    chosen_ = Make(choice.candidate);
    return {choice.memory};
  }

 private:
  struct Config {
    OffloadSet set;
    KernelChoice kernels;
  };

  // The passes in the paper's order: first with the fastest algorithms, offloading nothing and then
  // more and more; then with a greedy downgrade of each layer that would not fit. The last pass
  // comes first in the paper, where it shows whether the network can be trained.
  static constexpr std::array kPasses{
      Config{OffloadSet::kNone, KernelChoice::kPerformance},
      Config{OffloadSet::kConv, KernelChoice::kPerformance},
      Config{OffloadSet::kAll, KernelChoice::kPerformance},
      Config{OffloadSet::kConv, KernelChoice::kGreedy},
      Config{OffloadSet::kAll, KernelChoice::kGreedy},
      Config{OffloadSet::kAll, KernelChoice::kMemory},
  };

  std::unique_ptr<Policy> Make(size_t pass) const {
    return std::make_unique<VdnnPolicy>(kPasses[pass].set, kPasses[pass].kernels, chooser_);
  }

  // Returns the first pass that fits and is not slower than the last one, or the last one if there
  // is none.
  size_t ChooseFirst(const Device& device, const TrialRun& trial) const {
    constexpr size_t kLast = kPasses.size() - 1;
    const Report baseline = trial(*Make(kLast), device.memory);
    if (!baseline.fits()) return kLast;
    for (size_t pass = 0; pass < kLast; ++pass) {
      const Report report = trial(*Make(pass), device.memory);
      if (report.fits() && report.metrics.iteration <= baseline.metrics.iteration) return pass;
    }
    return kLast;
  }

  const Adopt adopt_;
  const KernelChooser chooser_;
};

template <OffloadSet kSet>
std::unique_ptr<Policy> MakeStatic(Params& params) {
  const KernelChoice kernels = ReadKernelChoice(params);
  const PlacementOrder order = ReadPlacementOrder(params);
  return std::make_unique<VdnnPolicy>(kSet, kernels, ReadKernelChooser(params), order);
}

std::unique_ptr<Policy> MakeVdnnDynPolicy(Params& params) {
  using Adopt = VdnnDynPolicy::Adopt;
  const auto adopt = params.Enum<Adopt>(
      "adopt", "first", {{"first", Adopt::kFirst}, {"fastest", Adopt::kFastest}},
      "which of the profiling passes that fit is kept: the first, as in the paper, or the fastest");
  return std::make_unique<VdnnDynPolicy>(adopt, ReadKernelChooser(params));
}

}  // namespace

void RegisterVdnn(PolicyRegistry& registry) {
  registry.Add("vdnn-all",
               "offload the inputs of all feature extraction layers (vDNN, section III-C)",
               MakeStatic<OffloadSet::kAll>, {.candidates = PlacementOrders()});
  registry.Add(
      "vdnn-conv",
      "offload the inputs of convolutions only (vDNN, section III-C), in transformers those "
      "of matrix products",
      MakeStatic<OffloadSet::kConv>, {.candidates = PlacementOrders()});
  registry.Add("vdnn-aconv", "offload the inputs of every other convolution (vDNN++, section II-B)",
               MakeStatic<OffloadSet::kAlternateConv>, {.candidates = PlacementOrders()});
  registry.Add("vdnn-dyn",
               "profiling passes choose offloading and algorithms (dynamic vDNN, section III-C)",
               MakeVdnnDynPolicy);
}

}  // namespace spillway::policies
