#include "policies/builtin.h"

#include "policies/registry.h"

namespace spillway {

void RegisterBuiltinPolicies(PolicyRegistry& registry) {
  registry.Add("network-wide",
               "everything allocated up front, gradient buffers reused (the baseline of vDNN, "
               "section IV-A)",
               MakeNetworkWidePolicy);
  registry.Add("liveness", "tensors freed after their last use, nothing moved", MakeLivenessPolicy);
  registry.Add("as-recorded",
               "tensors held for as long as the recorded program held them, nothing moved",
               MakeAsRecordedPolicy);
  registry.Add("vdnn-all",
               "offload the inputs of all feature extraction layers (vDNN, section III-C)",
               MakeVdnnAllPolicy);
  registry.Add("vdnn-conv", "offload the inputs of convolutions only (vDNN, section III-C)",
               MakeVdnnConvPolicy);
  registry.Add("vdnn-aconv", "offload the inputs of every other convolution (vDNN++, section II-B)",
               MakeVdnnAlternateConvPolicy);
  registry.Add("vdnn-dyn",
               "profiling passes choose offloading and algorithms (dynamic vDNN, section III-C)",
               MakeVdnnDynPolicy);
  registry.Add("vdnnpp",
               "vDNN whose computation waits for a copy only where it lacks memory or its own "
               "input (vDNN++, section IV)",
               MakeVdnnppPolicy, MemoryOfVdnnpp);
  registry.Add("caffe",
               "data and gradient of every blob for the whole run, a workspace for each "
               "convolution (Caffe, as SuperNeurons compares with it)",
               MakeCaffePolicy);
  registry.Add("torch",
               "outputs for the whole run, gradients in shared buffers (Torch 7, as SuperNeurons "
               "compares with it)",
               MakeTorchPolicy);
  registry.Add("mxnet",
               "liveness, and segments of about sqrt(N) layers computed again in backward (Chen et "
               "al. 2016)",
               MakeMxnetPolicy);
  registry.Add("tensorflow",
               "liveness, and tensors that live long over the peak swapped to the host "
               "(TensorFlow's memory optimizer)",
               MakeTensorFlowPolicy);
  registry.Add(
      "superneurons",
      "a tensor cache that moves data when memory is short, recomputation of cheap layers, "
      "workspaces from what is free (SuperNeurons, section 3)",
      MakeSuperNeuronsPolicy);
  registry.Add("dtr",
               "nothing planned: what is cheap to rebuild, large and long unused is dropped when "
               "memory runs out (DTR, section 4)",
               MakeDtrPolicy);
  registry.Add(
      "capuchin",
      "one measured iteration, then swaps that hide behind kernels, and recomputation where "
      "they do not (Capuchin, section 4)",
      MakeCapuchinPolicy);
  registry.Add("checkmate",
               "what to keep and what to compute again, by an integer program; nothing moved "
               "(Checkmate, section 4)",
               MakeCheckmatePolicy);
  registry.Add("ucudnn",
               "nothing moved, convolutions in micro-batches within a limit of workspace (u-cuDNN, "
               "section III)",
               MakeUcudnnPolicy);
  registry.Add(
      "mmcnn",
      "inference in little memory: layers in slices, weights through the link while earlier "
      "layers run (mmCNN, section 3)",
      MakeMmcnnPolicy);
  registry.Add(
      "inference-normal",
      "everything on the device from beginning to end (the normal mode that mmCNN compares "
      "with)",
      MakeInferenceNormalPolicy);
  registry.Add("inference-vdnn",
               "weights fetched layer by layer, each as a whole (vDNN, as mmCNN compares with it)",
               MakeInferenceVdnnPolicy);
  registry.Add("joint",
               "offloading, recomputation and algorithms decided together, by a search with "
               "trial runs",
               MakeJointPolicy);
  registry.Add("plan", "what `joint` has planned before, from a file; nothing is searched for",
               MakePlanPolicy);
  registry.Add(
      "saved-tensors",
      "as-recorded, but for what a list keeps, computes again or offloads of what backward "
      "reads, as PyTorch does it",
      MakeSavedTensorsPolicy);
}

}  // namespace spillway
