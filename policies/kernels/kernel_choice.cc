#include "policies/kernels/kernel_choice.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway {

KernelChoice ReadKernelChoice(Params& params) {
  return params.Enum<KernelChoice>(
      "algo", "performance",
      {{"memory", KernelChoice::kMemory},
       {"performance", KernelChoice::kPerformance},
       {"greedy", KernelChoice::kGreedy}},
      "convolution algorithms: the least workspace, the fastest, or the fastest whose workspace "
      "fits in the largest free block");
}

KernelChoice ReadFixedKernelChoice(Params& params) {
  return params.Enum<KernelChoice>(
      "algo", "performance",
      {{"memory", KernelChoice::kMemory}, {"performance", KernelChoice::kPerformance}},
      "convolution algorithms: the least workspace, or the fastest");
}

KernelPlan ChooseByRule(KernelChoice rule, const PolicyContext& context, OpId op) {
  if (rule == KernelChoice::kPerformance) return {};
  const Op& step = context.trace().op(op);
  const Bytes limit = rule == KernelChoice::kGreedy ? context.Stats().largest_free : Bytes(0);
  KernelPlan plan;
  plan.reserve(step.slots.size());
  for (uint32_t slot = 0; slot < step.slots.size(); ++slot) {
    const auto kernels = context.kernels(op, slot);
    const uint32_t kernel =
        rule == KernelChoice::kGreedy ? FastestWithin(kernels, limit) : LeastWorkspace(kernels);
    plan.push_back({slot, kernel, step.batch});
  }
  return plan;
}

KernelPlan ChooseWithin(Bytes limit, const PolicyContext& context, OpId op) {
  const Op& step = context.trace().op(op);
  KernelPlan plan;
  plan.reserve(step.slots.size());
  for (uint32_t slot = 0; slot < step.slots.size(); ++slot) {
    plan.push_back({slot, FastestWithin(context.kernels(op, slot), limit), step.batch});
  }
  return plan;
}

Bytes WorkspaceByRule(KernelChoice rule, const PolicyContext& context, OpId op) {
  SPILLWAY_CHECK(rule != KernelChoice::kGreedy);
  Bytes largest;
  for (size_t slot = 0; slot < context.trace().op(op).slots.size(); ++slot) {
    const auto kernels = context.kernels(op, slot);
    const uint32_t kernel = rule == KernelChoice::kPerformance ? 0 : LeastWorkspace(kernels);
    largest = std::max(largest, kernels[kernel].workspace);
  }
  return largest;
}

}  // namespace spillway
