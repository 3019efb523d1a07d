// A preset: the rules by which a framework or paper counts memory, under a name.
//
// Presets describe accounting; the traces they give also execute.

#ifndef SPILLWAY_TRACES_LOWERING_PRESET_H_
#define SPILLWAY_TRACES_LOWERING_PRESET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/units.h"
#include "traces/lowering/order.h"
#include "traces/ops/op_table.h"

namespace spillway {

enum class Update : uint8_t {
  kSeparate,  // gradients of all parameters live until an SGD-with-momentum step after backward
  kFused,     // plain SGD inside each backward op: no parameter gradients, no momentum
  kBuffered,  // as kFused, with the gradients in buffers that the op has for itself (its scratch)
};

// What an activation with several consumers becomes.
enum class Forks : uint8_t {
  kShare,     // they read the same tensor and add to one gradient; there is no fork op
  kShareOne,  // a fork op: the first consumer shares it, the others get copies
  kCopy,      // a fork op: each consumer gets a copy
};

// How a paper turns bytes into printed figures.
struct Counting {
  std::string unit;         // as printed: "GB", "MB"
  Bytes bytes_per_unit;     // vDNN's GB is 1000 MiB
  bool round_down = false;  // printed digits are cut off instead of rounded
  // The workspace that the paper's baseline counts, on top of the tensors: the largest FFT
  // workspace of the network's convolutions (`FftBaselineWorkspace`), or none.
  bool fft_workspace = false;
};

struct Preset {
  std::string name;
  std::string description;
  bool relu_in_place = true;      // forward on its input, backward on its gradient
  bool add_in_place = true;       // a sum overwrites one operand; both share its gradient
  bool softmax_in_place = false;  // the probabilities overwrite the scores
  // Backward of a convolution, a linear layer or an average pool holds the output until its end,
  // though it does not read it: the layer is one call with its activation, which does.
  bool holds_outputs = false;
  // Backward of a ReLU holds its input, and that of an average pool input and output, though it
  // reads neither: the library calls name them.
  bool holds_operands = false;
  // Backward of a ReLU or an LRN overwrites the gradient that comes in, that of the loss the
  // probabilities. A ReLU in place does so by itself.
  bool gradients_in_place = false;
  // Where each reader of an activation has a copy, the operands of a sum have its gradient for
  // theirs, though the sum has an output of its own.
  bool sum_shares_gradient = false;
  bool image_gradient = false;  // the first layers compute the gradient of the image, too
  Forks forks = Forks::kShare;
  Update update = Update::kSeparate;
  OpType update_rule = OpType::kSgd;   // of its row in the op table; fused, without its state
  Order order = Order::kConstruction;  // in which layers run forward; backward is its reverse
  Counting counting;

  // Whether one of these rules of the op table is among those above.
  bool HasAny(Rules rules) const;
};

// All presets, in the order in which they should be listed.
const std::vector<Preset>& Presets();

// Throws `UsageError` with a suggestion and the valid names.
const Preset& FindPreset(std::string_view name);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOWERING_PRESET_H_
