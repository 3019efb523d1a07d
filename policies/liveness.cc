// Frees every tensor after its last use and moves nothing: what the runtime does by itself.

#include <memory>

#include "policies/builtin.h"
#include "policies/kernels/kernel_choice.h"

namespace spillway {
namespace {

class LivenessPolicy final : public Policy {
 public:
  LivenessPolicy(KernelChoice kernels, const KernelChooser& chooser)
      : kernels_(kernels), chooser_(chooser) {}

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(kernels_, context, op);
  }

 private:
  const KernelChoice kernels_;
  const KernelChooser chooser_;
};

}  // namespace

std::unique_ptr<Policy> MakeLivenessPolicy(Params& params) {
  const KernelChoice kernels = ReadKernelChoice(params);
  return std::make_unique<LivenessPolicy>(kernels, ReadKernelChooser(params));
}

}  // namespace spillway
