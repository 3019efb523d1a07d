#include "policies/parts/lifetimes.h"

#include <algorithm>

#include "policies/kernels/kernel_choice.h"

namespace spillway::policies {

std::vector<std::vector<TensorId>> ColourLifetimes(const std::vector<TensorId>& storages,
                                                   const Liveness& liveness) {
  std::vector<TensorId> by_start = storages;
  std::stable_sort(by_start.begin(), by_start.end(), [&](TensorId a, TensorId b) {
    return liveness.FirstUse(a) < liveness.FirstUse(b);
  });
  std::vector<std::vector<TensorId>> colours;
  for (const TensorId id : by_start) {
    const auto ended_before = [&](const std::vector<TensorId>& colour) {
      return liveness.LastUse(colour.back()) < liveness.FirstUse(id);
    };
    const auto free = std::find_if(colours.begin(), colours.end(), ended_before);
    if (free == colours.end()) {
      colours.push_back({id});
    } else {
      free->push_back(id);
    }
  }
  return colours;
}

void ReserveUpFront(PolicyContext& context, Policy& policy, bool one_size) {
  const Trace& trace = context.trace();
  const Liveness& liveness = context.liveness();
  std::vector<TensorId> gradients;
  Bytes least;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensor(id);
    if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
    if (tensor.kind == TensorKind::kGradient) {
      gradients.push_back(id);
      if (one_size) least = std::max(least, tensor.size);
    } else {
      context.Reserve({&id, 1});  // false for parameters, which have a block already
    }
  }
  for (const auto& colour : ColourLifetimes(gradients, liveness)) context.Reserve(colour, least);
  Bytes workspace;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const auto op = static_cast<OpId>(i);
    workspace = std::max(workspace, WorkspaceOf(policy.ChooseKernels(context, op), context, op));
  }
  context.ReserveWorkspace(workspace);
}

}  // namespace spillway::policies
