// A preset: the named rules by which a framework or paper counts memory.
//
// Presets describe accounting, but their traces also execute.

#ifndef SPILLWAY_TRACES_LOWERING_PRESET_H_
#define SPILLWAY_TRACES_LOWERING_PRESET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/units.h"
#include "traces/lowering/order.h"
#include "traces/ops/op_table.h"

namespace spillway::traces {

enum class Update : uint8_t {
  kSeparate,  // gradients of all parameters live until an SGD-with-momentum step after backward
  kFused,     // plain SGD inside each backward op: no parameter gradients, no momentum
  kBuffered,  // like kFused, with the gradients in scratch buffers of the op
};

// The treatment of an activation with several consumers.
enum class Forks : uint8_t {
  kShare,     // consumers read the same tensor and add to one gradient; there is no fork op
  kShareOne,  // a fork op; the first consumer shares the activation, the others get copies
  kCopy,      // a fork op; each consumer gets a copy
};

struct Preset {
  std::string name;
  std::string description;
  bool relu_in_place = true;      // forward overwrites its input, backward its gradient
  bool add_in_place = true;       // a sum overwrites one operand; both operands share its gradient
  bool softmax_in_place = false;  // the probabilities overwrite the scores
  // Backward of a convolution, a linear layer or an average pool holds the output until its end
  // without reading it. The layer is one call with its activation, and the activation reads the
  // output.
  bool holds_outputs = false;
  // Backward of a ReLU holds its input, and backward of an average pool holds input and output.
  // Neither op reads them, but the library calls name them.
  bool holds_operands = false;
  // Backward of a ReLU or an LRN overwrites the incoming gradient; backward of the loss overwrites
  // the probabilities. A ReLU in place overwrites its gradient without this rule.
  bool gradients_in_place = false;
  // If each reader of an activation has a copy, the operands of a sum use the sum's gradient as
  // theirs, although the sum has its own output.
  bool sum_shares_gradient = false;
  bool image_gradient = false;  // the first layers also compute the gradient of the image
  Forks forks = Forks::kShare;
  Update update = Update::kSeparate;
  OpType update_rule = OpType::kSgd;   // row in the op table; fused: without its state
  Order order = Order::kConstruction;  // the order of layers in forward; backward runs in reverse

  // Returns true iff this preset has at least one of the given rules of the op table.
  bool HasAny(Rules rules) const;
};

// Returns all presets in the order in which they are listed.
const std::vector<Preset>& Presets();

// Returns the preset of this name. Throws a `UsageError` with a suggestion and the valid names.
const Preset& FindPreset(std::string_view name);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_PRESET_H_
