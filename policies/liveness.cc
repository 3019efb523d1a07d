// Frees every tensor after its last use and moves nothing: what the runtime does by itself.

#include <memory>

#include "policies/builtin.h"
#include "policies/kernels/kernel_choice.h"

namespace spillway {
namespace {

class LivenessPolicy final : public Policy {
 public:
  explicit LivenessPolicy(KernelChoice kernels) : kernels_(kernels) {}

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return ChooseByRule(kernels_, context, op);
  }

 private:
  const KernelChoice kernels_;
};

}  // namespace

std::unique_ptr<Policy> MakeLivenessPolicy(Params& params) {
  return std::make_unique<LivenessPolicy>(ReadKernelChoice(params));
}

}  // namespace spillway
