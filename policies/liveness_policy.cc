// A policy that moves nothing. The runtime frees every tensor after its last use. With
// `parameters=outside`, the policy streams parameters and optimizer state from a pool outside.

#include <memory>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/streamed_parameters.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

class LivenessPolicy final : public Policy {
 public:
  LivenessPolicy(KernelChoice kernels, const KernelChooser& chooser,
                 const StreamedParameters& parameters)
      : kernels_(kernels), chooser_(chooser), parameters_(parameters) {}

  bool LivesOutside(const Trace& trace, TensorId tensor) override {
    return parameters_.LivesOutside(trace, tensor);
  }
  void BeforeLaunch(PolicyContext& context, OpId op) override {
    parameters_.PrefetchAfter(context, op);
  }
  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    return parameters_.MakeRoom(context);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(kernels_, context, op);
  }

 private:
  const KernelChoice kernels_;
  const KernelChooser chooser_;
  StreamedParameters parameters_;
};

std::unique_ptr<Policy> MakeLivenessPolicy(Params& params) {
  const KernelChoice kernels = ReadKernelChoice(params);
  const KernelChooser chooser = ReadKernelChooser(params);
  return std::make_unique<LivenessPolicy>(kernels, chooser, ReadStreamedParameters(params));
}

}  // namespace

void RegisterLiveness(PolicyRegistry& registry) {
  registry.Add("liveness", "tensors freed after their last use, nothing moved", MakeLivenessPolicy);
}

}  // namespace spillway::policies
