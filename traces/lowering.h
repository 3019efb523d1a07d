// Lowering: from a network to the trace of one iteration, under a named accounting preset.
//
// Frameworks and papers differ in what runs in place, what backward keeps and when parameters are
// updated, and so in how much memory the same network needs. A preset names one such set of rules.
// Presets describe accounting; the traces they give also execute.

#ifndef SPILLWAY_TRACES_LOWERING_H_
#define SPILLWAY_TRACES_LOWERING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.h"
#include "traces/graph.h"
#include "traces/order.h"
#include "traces/trace.h"

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
  Order order = Order::kConstruction;  // in which layers run forward; backward is its reverse
  Counting counting;
};

// All presets, in the order in which they should be listed.
const std::vector<Preset>& Presets();

// Throws `UsageError` with a suggestion and the valid names.
const Preset& FindPreset(std::string_view name);

struct LoweringOptions {
  int64_t batch = 1;
  std::string preset = "torch";
  bool training = true;  // false: the forward ops only
};

// The trace of one iteration: forward in the preset's order, backward in reverse, then the updates.
// What a backward op keeps alive: a convolution or linear layer its input and weights, a ReLU its
// output, a max pool and an LRN both input and output, a batch normalisation its input and the
// statistics of the batch, all others nothing; more where the preset holds operands. A layer works
// in place, where the preset says so, if nothing else needs what it overwrites. A dropout is no op
// in inference. With shared forks, an activation with several consumers has one gradient, to which
// the later consumers in backward order add. The gradient of the image is computed, for nobody,
// where the preset says so. Throws `UsageError` for an unknown preset.
Trace LowerNetwork(const Network& network, const LoweringOptions& options);
// Under a preset of the caller's; `options.preset` is not looked at.
Trace LowerNetwork(const Network& network, const LoweringOptions& options, const Preset& preset);

// The workspace that vDNN's baseline counts, in bytes: the largest FFT workspace over the network's
// stride-1 convolutions whose plane, padded to a power of two, is at most 128 wide. With P the
// bytes of one padded plane in the frequency domain, n * (n / 2 + 1) * 8, forward takes (CN + KN +
// CK) P; backward data takes 2 (KN + CK) P + 4 CKRS and is counted for filters larger than 3x3, for
// which FFT is the fastest choice. vDNN, section II-B; formulas as in section 1.6 of the accounting
// of vDNN++.
Bytes FftBaselineWorkspace(const Trace& trace);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOWERING_H_
