// vDNN++ (Shriram et al., IPDPS 2019): vDNN without waiting for every copy.
//
// Tensors are offloaded and prefetched as in vDNN (section II-B; vdnn_layers.h); `offload` says of
// which layers. There are no fences (section IV-A): an op waits for a copy only if the copy brings
// the op's input, or if the op's memory is still being copied from.
//
// `release=eager` releases X with the step that offloads it, as vDNN does. That is the sequence of
// requests that the paper's Tables II and V count. `release=lazy` keeps X until a request finds no
// room, and then releases the oldest first; the others are released at the end of forward. So free
// memory is used before memory that is still being copied from. But the tensors that are kept
// meanwhile leave holes, so that lazy release may not fit where eager release does (the paper's
// VGG-16(64) aconv(p)). `release=landed` is lazy, and also releases X as soon as its copy has
// landed by the cost model, as the paper's waiting threads do by the clock.
//
// `release=auto` tries all three and acts as the fastest that fits; of equals, the laziest.
// `algo=auto` tries the fastest algorithms, the fastest that fit at each step, and the ones with
// the least workspace. `offload=dyn` tries to offload nothing, the inputs of every other
// convolution, of all convolutions, and of all feature extraction layers. All are also tried in
// less memory (fastest.h). vDNN adopts the first such pass that fits; this policy adopts the
// fastest. With micro-batches, everything is also tried on whole batches.
//
// `order` is the paper's prefetch-first or derivative-first, and `hint` its high-end allocation
// (section IV-B). The paper's text sends tensors that leave to the high end of the arena
// (`offloaded`); its code and Table V send tensors that stay there (`kept`).

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/fastest.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/parts/streamed_parameters.h"
#include "policies/parts/vdnn_layers.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

enum class ReleaseTime : uint8_t { kEager, kLanded, kLazy };
enum class HighEnd : uint8_t { kNothing, kKept, kOffloaded };

struct Config {
  OffloadSet set = OffloadSet::kConv;
  KernelChoice kernels = KernelChoice::kPerformance;
  PlacementOrder order = PlacementOrder::kDerivativeFirst;
  HighEnd high_end = HighEnd::kNothing;
  ReleaseTime release = ReleaseTime::kEager;
  KernelChooser chooser = {};
  StreamedParameters parameters = StreamedParameters();
};

class StaticPolicy final : public Policy {
 public:
  explicit StaticPolicy(const Config& config) : config_(config), parameters_(config.parameters) {}

  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    return parameters_.LivesOutside(trace, tensor);
  }

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
      computed_ = copied_ = Duration();
    }
    if (config_.release == ReleaseTime::kLanded) {
      ReleaseWhere(context, [this](const Offloaded& x) { return x.landed <= computed_; });
    }
    if (config_.order == PlacementOrder::kPrefetchFirst) PrefetchFor(context, op);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    KernelPlan plan = config_.chooser.ByRule(config_.kernels, context, op);
    started_ = computed_;
    computed_ += TimeOf(plan, context, op);
    return plan;
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (config_.order == PlacementOrder::kDerivativeFirst) PrefetchFor(context, op);
    parameters_.PrefetchAfter(context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    VdnnLayers::Layer* layer = layers_.OffloadedWith(op);
    if (layer == nullptr) return;
    for (const TensorId input : layer->inputs) {
      if (!context.Offload(input)) continue;
      layer->offloaded = true;
      copied_ = std::max(copied_, started_) +
                context.cost().CopyTime(Direction::kToHost, context.trace().tensor(input).size);
      unreleased_.push_back({input, copied_});
    }
    if (config_.release == ReleaseTime::kEager || op == last_forward_) {
      ReleaseWhere(context, [](const Offloaded&) { return true; });
    }
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
    if (parameters_.MakeRoom(context)) return true;
    for (auto oldest = unreleased_.begin(); oldest != unreleased_.end(); ++oldest) {
      if (!context.Release(oldest->storage)) continue;
      unreleased_.erase(oldest);
      return true;
    }
    return false;
  }

 private:
  struct Offloaded {
    TensorId storage{};
    Duration landed;  // by the cost model, from the start of the iteration
  };

  template <typename Condition>
  void ReleaseWhere(PolicyContext& context, Condition condition) {
    std::erase_if(unreleased_,
                  [&](const Offloaded& x) { return condition(x) && context.Release(x.storage); });
  }

  void PrefetchFor(PolicyContext& context, OpId op) {
    if (VdnnLayers::Layer* layer = layers_.FindPrefetchLayer(op)) {
      VdnnLayers::Prefetch(context, *layer);
    }
  }

  const Config config_;
  StreamedParameters parameters_;
  VdnnLayers layers_;
  OpId last_forward_{};
  std::vector<Offloaded> unreleased_;  // still on the device, oldest first
  // By the cost model, without any waiting: when the op being issued starts and ends, and when all
  // copies to the host so far have ended.
  Duration started_, computed_, copied_;
};

// Tries static configurations, and then acts as the fastest that fits.
class ChoosingPolicy final : public ForwardingPolicy {
 public:
  // The first of two equally fast candidates is preferred. REQUIRES: not empty.
  explicit ChoosingPolicy(std::vector<Config> candidates) : candidates_(std::move(candidates)) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    const auto in_core = std::find_if(candidates_.begin(), candidates_.end(), [](const Config& c) {
      return c.set == OffloadSet::kNone && c.kernels == KernelChoice::kPerformance;
    });
    const Fastest fastest =
        ChooseFastest(trace, device, trial,
                      {candidates_.size(),
                       [this](size_t i) { return std::make_unique<StaticPolicy>(candidates_[i]); },
                       static_cast<size_t>(in_core - candidates_.begin())});
    chosen_ = std::make_unique<StaticPolicy>(candidates_[fastest.candidate]);
    return {fastest.memory};
  }

 private:
  const std::vector<Config> candidates_;
};

HighEnd ReadHint(Params& params) {
  return params.Enum<HighEnd>(
      "hint", "none",
      {{"none", HighEnd::kNothing}, {"kept", HighEnd::kKept}, {"offloaded", HighEnd::kOffloaded}},
      "which activations go to the high end of the arena: those that stay on the device (the "
      "authors' code) or those that leave (the paper's text)");
}

std::string ReadOffload(Params& params) {
  return params.Choice(
      "offload", "dyn", {"all", "conv", "aconv", "dyn"},
      "the layers whose inputs leave: all feature extraction layers, convolutions, "
      "every other convolution, or whichever are fastest in trial runs");
}

std::string ReadAlgorithms(Params& params) {
  return params.Choice("algo", "auto", {"auto", "memory", "performance"},
                       "convolution algorithms: the least workspace, the fastest, or whichever are "
                       "fastest in trial runs, which also try the fastest that fit");
}

// Returns the vDNN policy of the same mode; empty for `offload=dyn`, which adapts to its memory.
std::string MemoryOf(Params& params) {
  const std::string offload = ReadOffload(params);
  const std::string algo = ReadAlgorithms(params);
  if (offload == "dyn") return {};
  return "vdnn-" + offload + ":algo=" + (algo == "auto" ? "performance" : algo);
}

std::unique_ptr<Policy> MakeVdnnppPolicy(Params& params) {
  const std::string offload = ReadOffload(params);
  const std::string algo = ReadAlgorithms(params);
  using Releases = std::vector<ReleaseTime>;
  const auto releases = params.Enum<Releases>(
      "release", "auto",
      {{"auto", {ReleaseTime::kLazy, ReleaseTime::kLanded, ReleaseTime::kEager}},
       {"lazy", {ReleaseTime::kLazy}},
       {"landed", {ReleaseTime::kLanded}},
       {"eager", {ReleaseTime::kEager}}},
      "when an offloaded X is released: lazy, when memory is short and at the end of forward; "
      "landed, also when its copy has landed by the cost model; eager, at the end of its step; "
      "auto, whichever is fastest in trial runs");
  const PlacementOrder order = ReadPlacementOrder(params);
  const HighEnd high_end = ReadHint(params);
  std::vector<KernelChooser> choosers{ReadKernelChooser(params)};
  if (choosers.front().batches()) choosers.emplace_back();
  const StreamedParameters parameters = ReadStreamedParameters(params);

  std::vector<OffloadSet> sets;
  if (offload == "dyn") sets.push_back(OffloadSet::kNone);
  if (offload == "dyn" || offload == "aconv") sets.push_back(OffloadSet::kAlternateConv);
  if (offload == "dyn" || offload == "conv") sets.push_back(OffloadSet::kConv);
  if (offload == "dyn" || offload == "all") sets.push_back(OffloadSet::kAll);
  std::vector<KernelChoice> kernels;
  if (algo != "memory") kernels.push_back(KernelChoice::kPerformance);
  if (algo == "auto") kernels.push_back(KernelChoice::kGreedy);
  if (algo != "performance") kernels.push_back(KernelChoice::kMemory);

  std::vector<Config> candidates;
  for (const KernelChooser& chooser : choosers) {
    for (const KernelChoice choice : kernels) {
      for (const OffloadSet set : sets) {
        for (const ReleaseTime when : releases) {
          candidates.push_back({set, choice, order, high_end, when, chooser, parameters});
          if (set == OffloadSet::kNone) break;  // there is nothing to release
        }
      }
    }
  }
  if (candidates.size() == 1) return std::make_unique<StaticPolicy>(candidates.front());
  return std::make_unique<ChoosingPolicy>(std::move(candidates));
}

}  // namespace

void RegisterVdnnpp(PolicyRegistry& registry) {
  registry.Add("vdnnpp",
               "vDNN whose computation waits for a copy only where it lacks memory or its own "
               "input (vDNN++, section IV)",
               MakeVdnnppPolicy, {.memory_of = MemoryOf, .candidates = PlacementOrders()});
}

}  // namespace spillway::policies
