// mmCNN (Li et al. 2020), inference in little memory, and the policies that the paper compares it
// with.
//
// Parameters live outside and come through the link while earlier layers run (section 3.2,
// Algorithm 1). `mmcnn` divides layers that do not fit into slices (layer_split.h);
// `inference-vdnn` leaves every layer whole, as vDNN does. If memory still runs out, the parameter
// that was prefetched last is released first, and then the feature map that is needed last is
// copied out. So any network runs where its largest op fits. If everything fits in core (normal
// mode), nothing is done.
//
// A training iteration, and an inference of more than one image, is streamed in the same way but
// not divided.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/mmcnn/layer_split.h"
#include "policies/mmcnn/slice_ops.h"
#include "policies/registry.h"
#include "sim/core/report.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

struct MmcnnOptions {
  Bytes limit = Bytes::Unlimited();
  MmcnnRule rule;
  bool may_be_normal = true;  // use normal mode where it fits
};

class MmcnnPolicy final : public Policy {
 public:
  explicit MmcnnPolicy(const MmcnnOptions& options) : options_(options) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    const bool divide = CanDivide(trace);
    if (!FitsMmcnn(trace, options_.limit, device.alignment, divide)) {
      const LeastMemory least = LeastMmcnnMemory(trace, device.alignment, divide);
      throw UsageError(
          fmt::format("policy 'mmcnn': limit: {} is less than layer '{}' of {} needs; valid: {} "
                      "({} bytes) or more",
                      FormatBytes(options_.limit, least.size), least.layer, trace.name,
                      FormatBytes(least.size, options_.limit), least.size.count()));
    }
    const Bytes memory = std::min(options_.limit, device.memory);
    if (options_.may_be_normal) {
      Normal normal;
      normal_ = trial(normal, memory).fits();
      if (normal_) return {memory};
    }
    MmcnnRule rule = options_.rule;
    rule.divide = divide;
    DividedInference divided = DivideForMmcnn(trace, memory, device.alignment, rule);
    prefetch_from_ = std::move(divided.prefetch_from);
    return {memory, std::move(divided.trace)};
  }

  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    const Tensor& stored = trace.tensor(tensor);  // parts that are no parameters are of an image
    return !normal_ && (IsParameter(stored) || stored.part_of);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return KernelChooser().ByRule(KernelChoice::kGreedy, context, op);
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (normal_) return;
    AddCurrentOp(context);
    current_ = op;
    if (op != OpId{0}) return;
    ahead_ = 0;
    prefetched_.clear();
    for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (context.liveness().Root(id) == id && IsPresent(context, id)) present_.insert(id);
    }
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (normal_ || context.recomputing()) return;
    const std::vector<Op>& ops = context.trace().ops;
    for (ahead_ = std::max(ahead_, Index(op) + 1); ahead_ < ops.size(); ++ahead_) {
      for (const TensorId id : context.liveness().Storages(static_cast<OpId>(ahead_))) {
        if (!LivesOutside(context.trace(), id)) continue;
        if (prefetch_from_[Index(id)] > op) return;
        if (context.Where(id) != Residency::kOutside) continue;
        if (!context.Prefetch(id)) return;
        prefetched_.emplace_back(id, context.NextUse(id));
        present_.insert(id);
      }
    }
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    for (const TensorId id : context.liveness().Storages(op)) NoteOutside(context, id);
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    if (normal_) return false;
    while (!prefetched_.empty()) {
      const auto [last, use] = prefetched_.back();
      prefetched_.pop_back();
      if (context.NextUse(last) != use || !context.Release(last)) continue;
      NoteOutside(context, last);
      return true;
    }
    return SendOneOutside(context);
  }

 private:
  // The normal mode: everything stays on the device, and free memory is the workspace.
  class Normal final : public Policy {
    KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
      return KernelChooser().ByRule(KernelChoice::kGreedy, context, op);
    }
  };

  // Returns true if the trace can be divided. A trace with parts has been divided already.
  bool CanDivide(const Trace& trace) const {
    const bool is_divided = std::ranges::any_of(
        trace.tensors, [](const Tensor& tensor) { return tensor.part_of.has_value(); });
    return options_.rule.divide && !trace.training && !is_divided;
  }

  // Copies out, of the storages that can leave, the one that is needed last. Returns false if none
  // can.
  bool SendOneOutside(PolicyContext& context) {
    AddCurrentOp(context);
    std::erase_if(present_, [&](TensorId id) { return !IsPresent(context, id); });
    std::vector<std::pair<OpId, TensorId>> candidates;
    for (const TensorId id : present_) {
      if (context.Pinned(id)) continue;
      candidates.emplace_back(context.NextUse(id).value_or(OpId{0xffffffff}), id);
    }
    std::ranges::sort(candidates, std::greater<>());
    for (const auto& [next, id] : candidates) {
      if (!context.Offload(id) || !context.Release(id)) continue;
      NoteOutside(context, id);
      return true;
    }
    return false;
  }

  void NoteOutside(PolicyContext& context, TensorId storage) {
    const std::optional<OpId> next = context.NextUse(storage);
    if (next && context.Where(storage) == Residency::kOutside) {
      ahead_ = std::min(ahead_, size_t{Index(*next)});
    }
  }

  // Adds the operands of the current op, which come and go while they are placed.
  void AddCurrentOp(PolicyContext& context) {
    const auto storages = context.liveness().Storages(current_);
    present_.insert(storages.begin(), storages.end());
  }

  static bool IsPresent(PolicyContext& context, TensorId storage) {
    const Residency where = context.Where(storage);
    return where == Residency::kDevice || where == Residency::kBoth;
  }

  const MmcnnOptions options_;
  bool normal_ = false;
  std::vector<OpId> prefetch_from_;  // by tensor
  std::vector<std::pair<TensorId, std::optional<OpId>>>
      prefetched_;  // with the use that each is for, in the order of prefetching
  OpId current_{};
  size_t ahead_ = 0;            // the first op that may use a parameter that is still outside
  std::set<TensorId> present_;  // has all storages on the device but the current op's
};

// Everything is on the device for the whole run.
class InferenceNormalPolicy final : public Policy {
 public:
  void Plan(PolicyContext& context) override {
    for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const TensorKind kind = context.trace().tensor(id).kind;
      const bool made = kind != TensorKind::kParameter && kind != TensorKind::kOptimizerState;
      const bool used = !context.liveness().Uses(context.liveness().Root(id)).empty();
      if (context.liveness().Root(id) == id && made && used) context.Reserve(std::span(&id, 1));
    }
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return KernelChooser().ByRule(KernelChoice::kGreedy, context, op);
  }
};

std::unique_ptr<Policy> MakeMmcnnPolicy(Params& params) {
  MmcnnOptions options;
  options.limit = params.Size("limit", Bytes::Unlimited(),
                              "the most device memory to use, at least what the largest op needs "
                              "when it is divided");
  options.rule.most_parts = params.Integer("pnmax", options.rule.most_parts, 1, 1'000'000,
                                           "the most parts in which the weights of a layer are "
                                           "prefetched while earlier layers run");
  options.rule.ahead =
      params.Integer("ahead", options.rule.ahead, 1, 1'000'000,
                     "segments, each up to a layer with weights, that weights may be prefetched "
                     "ahead where memory is free; 1 as in the paper");
  return std::make_unique<MmcnnPolicy>(options);
}

std::unique_ptr<Policy> MakeInferenceNormalPolicy(Params&) {
  return std::make_unique<InferenceNormalPolicy>();
}

std::unique_ptr<Policy> MakeInferenceVdnnPolicy(Params&) {
  MmcnnOptions options;
  options.rule.divide = false;
  options.may_be_normal = false;
  return std::make_unique<MmcnnPolicy>(options);
}

}  // namespace

void RegisterMmcnn(PolicyRegistry& registry) {
  registry.Add("mmcnn",
               "inference in little memory: layers in slices, weights through the link while "
               "earlier layers run (mmCNN, section 3). The layers of transformers stay whole",
               MakeMmcnnPolicy,
               {.for_inference = true,
                .divides_ops = true,
                .least_memory = [](const Trace& trace, Bytes alignment) {
                  return LeastMmcnnMemory(trace, alignment);
                }});
  registry.Add(
      "inference-normal",
      "everything on the device from beginning to end (the normal mode that mmCNN compares with)",
      MakeInferenceNormalPolicy, {.for_inference = true});
  registry.Add("inference-vdnn",
               "weights fetched layer by layer, each as a whole (vDNN, as mmCNN compares with it)",
               MakeInferenceVdnnPolicy, {.for_inference = true});
}

}  // namespace spillway::policies
