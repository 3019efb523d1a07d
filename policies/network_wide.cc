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
#include "policies/lifetimes.h"

namespace spillway {
namespace {

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
  return std::make_unique<NetworkWidePolicy>(ReadFixedKernelChoice(params));
}

}  // namespace spillway
