// The memory rules of Torch 7, with which SuperNeurons (Wang et al., PPoPP 2018, section 2.2)
// compares.
//
// - A module owns its output, which has its memory for the whole run (torch/nn, Module.output).
//   ReLU and sums work in place in both directions where that is possible (the models of
//   fb.resnet.torch); here the preset says where.
// - Gradients of activations share buffers if they are never needed at the same time. A buffer is
//   as large as its largest user (optnet's training mode; fb.resnet.torch, shareGradInput). The
//   forward pass is not analysed, so outputs share nothing.
// - Each parameter has its gradient for the whole run.
// - All convolutions use one workspace (cudnn.torch, getSharedWorkspace). They run the algorithm
//   that needs no workspace, as with cudnn.fastest and cudnn.benchmark off, unless `workspace`
//   grants more.

#include <memory>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/lifetimes.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

class TorchPolicy final : public Policy {
 public:
  TorchPolicy(Bytes workspace, const KernelChooser& chooser)
      : workspace_(workspace), chooser_(chooser) {}

  void Plan(PolicyContext& context) override { ReserveUpFront(context, *this, /*one_size=*/false); }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.Within(workspace_, context, op);
  }

 private:
  const Bytes workspace_;
  const KernelChooser chooser_;
};

std::unique_ptr<Policy> MakeTorchPolicy(Params& params) {
  const Bytes workspace = params.Size("workspace", Bytes(0), "the most workspace of a call");
  return std::make_unique<TorchPolicy>(workspace, ReadKernelChooser(params));
}

}  // namespace

void RegisterTorch(PolicyRegistry& registry) {
  registry.Add("torch",
               "outputs for the whole run, gradients in shared buffers (Torch 7, as SuperNeurons "
               "compares with it)",
               MakeTorchPolicy);
}

}  // namespace spillway::policies
