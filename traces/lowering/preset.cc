#include "traces/lowering/preset.h"

#include "traces/base/error.h"

namespace spillway::traces {

bool Preset::HasAny(Rules rules) const {
  Rules own = 0;
  if (relu_in_place) own |= kReluInPlace;
  if (add_in_place) own |= kAddInPlace;
  if (softmax_in_place) own |= kSoftmaxInPlace;
  if (gradients_in_place) own |= kGradientsInPlace;
  if (holds_outputs) own |= kHoldsOutputs;
  if (holds_operands) own |= kHoldsOperands;
  return (own & rules) != 0;
}

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets{
      {.name = "torch",
       .description =
           "a modern framework: ReLU and sums in place, gradients of parameters kept until an SGD "
           "step with momentum after backward"},
      {.name = "vdnn",
       .description =
           "vDNN's memory manager and its baseline: ReLU, sums and softmax in place, parameters "
           "updated inside backward (plain SGD); a GB is 1000 MiB",
       .softmax_in_place = true,
       .update = Update::kFused},
      {.name = "vdnnpp",
       .description =
           "vDNN++'s memory manager: ReLU, sums and softmax in place, outputs held through the "
           "layer's backward step, parameters updated inside it from gradient buffers; sizes are "
           "cut off to whole MiB",
       .softmax_in_place = true,
       .holds_outputs = true,
       .update = Update::kBuffered},
      {.name = "superneurons",
       .description =
           "SuperNeurons' tensors: each layer has its own output and a fork copies; backward of a "
           "ReLU, an LRN and the loss works in place; the operands of a sum share its gradient; "
           "the image has a gradient; gradients of parameters live until an update after backward",
       .relu_in_place = false,
       .add_in_place = false,
       .holds_operands = true,
       .gradients_in_place = true,
       .sum_shares_gradient = true,
       .image_gradient = true,
       .forks = Forks::kCopy,
       .order = Order::kDepthFirst},
  };
  return presets;
}

const Preset& FindPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  throw UsageError(UnknownName("preset", name, names));
}

}  // namespace spillway::traces
