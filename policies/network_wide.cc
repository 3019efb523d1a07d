// The baseline of vDNN (section IV-A): every tensor has its block for the whole run.
//
// Each activation, input and parameter gradient gets a block. The gradients of activations share as
// few blocks as their lifetimes allow (two for a chain: dX and dY), and each of these blocks is as
// large as the largest gradient. One workspace serves all kernels.

#include <memory>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/lifetimes.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

class NetworkWidePolicy final : public Policy {
 public:
  NetworkWidePolicy(KernelChoice kernels, const KernelChooser& chooser)
      : kernels_(kernels), chooser_(chooser) {}

  void Plan(PolicyContext& context) override { ReserveUpFront(context, *this, /*one_size=*/true); }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(kernels_, context, op);
  }

 private:
  const KernelChoice kernels_;
  const KernelChooser chooser_;
};

std::unique_ptr<Policy> MakeNetworkWidePolicy(Params& params) {
  const KernelChoice kernels = ReadFixedKernelChoice(params);
  return std::make_unique<NetworkWidePolicy>(kernels, ReadKernelChooser(params));
}

}  // namespace

void RegisterNetworkWide(PolicyRegistry& registry) {
  registry.Add(
      "network-wide",
      "everything allocated up front, gradient buffers reused (the baseline of vDNN, section IV-A)",
      MakeNetworkWidePolicy);
}

}  // namespace spillway::policies
