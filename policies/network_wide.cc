// The baseline of vDNN (section IV-A): every tensor has its block for the whole run.
//
// Activations, inputs and parameter gradients get one block each. Gradients of activations share
// the least number of blocks that their lifetimes allow (two for a chain: dX and dY), each as large
// as the largest gradient. One workspace serves all kernels.

#include <algorithm>
#include <memory>
#include <vector>

#include "policies/builtin.h"
#include "policies/kernel_choice.h"
#include "traces/liveness.h"

namespace spillway {
namespace {

// Colours the lifetimes so that no two of one colour overlap, with the fewest colours: each
// interval, in order of its start, takes the colour that has been free longest.
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

class NetworkWidePolicy final : public Policy {
 public:
  explicit NetworkWidePolicy(KernelChoice kernels) : kernels_(kernels) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    std::vector<TensorId> gradients;
    Bytes largest_gradient;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const Tensor& tensor = trace.tensor(id);
      if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
      if (tensor.kind == TensorKind::kGradient) {
        gradients.push_back(id);
        largest_gradient = std::max(largest_gradient, tensor.size);
      } else {
        context.Reserve({&id, 1});  // says no to parameters, which have a block already
      }
    }
    for (const auto& colour : ColourLifetimes(gradients, liveness)) {
      context.Reserve(colour, largest_gradient);
    }
    Bytes workspace;
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      workspace = std::max(workspace, WorkspaceByRule(kernels_, context, static_cast<OpId>(i)));
    }
    context.ReserveWorkspace(workspace);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return ChooseByRule(kernels_, context, op);
  }

 private:
  const KernelChoice kernels_;
};

}  // namespace

std::unique_ptr<Policy> MakeNetworkWidePolicy(Params& params) {
  return std::make_unique<NetworkWidePolicy>(ReadKernelChoice(params));
}

}  // namespace spillway
