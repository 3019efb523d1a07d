#include "policies/kernels/kernel_choice.h"

#include <algorithm>

namespace spillway::policies {
namespace {

// Calls `use` with each kernel of a plan for the op.
template <typename Use>
void ForEachKernel(const KernelPlan& plan, const PolicyContext& context, OpId id, Use use) {
  const Op& op = context.trace().op(id);
  if (plan.empty()) {
    for (size_t slot = 0; slot < op.slots.size(); ++slot) use(context.kernels(id, slot).front());
    return;
  }
  for (const KernelRun& run : plan) {
    const auto kernels = run.batch == op.batch ? context.kernels(id, run.slot)
                                               : context.cost().Kernels(op, run.slot, run.batch);
    use(kernels[run.kernel]);
  }
}

}  // namespace

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

KernelChooser ReadKernelChooser(Params& params) {
  std::vector<std::pair<std::string, KernelChooser>> choosers{{"off", KernelChooser()}};
  for (const auto& [name, batches] : kMicroBatchNames) {
    choosers.emplace_back(name, KernelChooser(batches));
  }
  return params.Enum<KernelChooser>(
      "micro", "off", choosers,
      "the batches that a convolution may be divided into, to be faster in the same workspace "
      "(u-cuDNN); off leaves the choice of algorithms as the policy has it");
}

KernelPlan KernelChooser::ByRule(KernelChoice rule, const PolicyContext& context, OpId op) const {
  switch (rule) {
    case KernelChoice::kPerformance:
      return fronts_ ? Within(Bytes::Unlimited(), context, op) : KernelPlan();
    case KernelChoice::kGreedy:
      return Within(context.Stats().largest_free, context, op);
    case KernelChoice::kMemory:
      return Within(Bytes(0), context, op);
  }
  return {};
}

KernelPlan KernelChooser::Within(Bytes limit, const PolicyContext& context, OpId id) const {
  const Op& op = context.trace().op(id);
  KernelPlan plan;
  plan.reserve(op.slots.size());
  for (uint32_t slot = 0; slot < op.slots.size(); ++slot) {
    const auto kernels = context.kernels(id, slot);
    if (!fronts_) {
      plan.push_back({slot, FastestWithin(kernels, limit), op.batch});
      continue;
    }
    const auto front = fronts_->Of(context.cost(), op, slot);
    const Bytes granted = std::max(limit, kernels[LeastWorkspace(kernels)].workspace);
    const Division& division = *FastestWithin(front, granted);
    plan.insert(plan.end(), division.parts.begin(), division.parts.end());
  }
  return plan;
}

std::vector<KernelPlan> KernelChooser::Ways(const CostModel& cost, const Op& op) const {
  std::vector<std::vector<Division>> fronts;
  std::vector<Bytes> limits;
  for (uint32_t slot = 0; slot < op.slots.size(); ++slot) {
    std::vector<Division>& front = fronts.emplace_back();
    if (fronts_) {
      const Front known = fronts_->Of(cost, op, slot);
      front.assign(known.begin(), known.end());
    } else {
      const auto kernels = cost.Kernels(op, slot, op.batch);
      for (uint32_t i = 0; i < kernels.size(); ++i) {
        if (!front.empty() && front.back().workspace <= kernels[i].workspace) continue;
        front.push_back({kernels[i].workspace, kernels[i].time, {{slot, i, op.batch}}});
      }
      std::ranges::reverse(front);
    }
    for (const Division& way : front) limits.push_back(way.workspace);
  }
  std::ranges::sort(limits);
  std::vector<KernelPlan> ways;
  for (const Bytes limit : limits) {
    KernelPlan plan;
    for (const auto& front : fronts) {
      const Division* const way = FastestWithin(front, std::max(limit, front.front().workspace));
      plan.insert(plan.end(), way->parts.begin(), way->parts.end());
    }
    if (ways.empty() || ways.back() != plan) ways.push_back(std::move(plan));
  }
  return ways;
}

Bytes WorkspaceOf(const KernelPlan& plan, const PolicyContext& context, OpId op) {
  Bytes largest;
  ForEachKernel(plan, context, op,
                [&](const Kernel& kernel) { largest = std::max(largest, kernel.workspace); });
  return largest;
}

Duration TimeOf(const KernelPlan& plan, const PolicyContext& context, OpId op) {
  Duration time;
  ForEachKernel(plan, context, op, [&](const Kernel& kernel) { time += kernel.time; });
  return time;
}

}  // namespace spillway::policies
