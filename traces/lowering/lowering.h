// Lowering turns a network into the trace of one iteration, under a named accounting preset.
//
// Frameworks and papers differ in which ops run in place, which tensors backward keeps and when
// parameters are updated, and therefore in how much memory the same network needs. A preset names
// one such set of rules. Presets describe accounting, but their traces also execute.

#ifndef SPILLWAY_TRACES_LOWERING_LOWERING_H_
#define SPILLWAY_TRACES_LOWERING_LOWERING_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "traces/base/units.h"
#include "traces/lowering/graph.h"
#include "traces/lowering/preset.h"
#include "traces/trace.h"

namespace spillway::traces {

// The types of tensors and the arithmetic of matrix products.
enum class Precision : uint8_t {
  kFp32,
  kTf32,  // float32 tensors, products in tf32
  // Automatic mixed precision: normalisations, softmax and the loss keep their outputs, parameters
  // and statistics in float32; all other tensors are bfloat16, and products are in bf16. An
  // optimizer with moments keeps parameters of bfloat16 in float32, too.
  kBf16,
};
inline constexpr std::array kPrecisionNames =
    std::to_array<std::string_view>({"fp32", "tf32", "bf16"});

struct LoweringOptions {
  int64_t batch = 1;
  std::string preset = "torch";
  bool training = true;  // false: forward ops only
  // The row of the update rule; nullopt: the preset's. Only a preset whose updates are ops of their
  // own can have another one.
  std::optional<OpType> optimizer = std::nullopt;
  Precision precision = Precision::kFp32;
  // The number of micro-batches of `batch` samples in one iteration. Their gradients are added, and
  // one update follows.
  int64_t accumulate = 1;
  // The gradients are scaled before the update so that their norm, over all parameters together, is
  // at most this number. It is positive and finite.
  std::optional<double> clip_norm = std::nullopt;
  // The number of parts of the tokens on which the last linear layer and the loss work one after
  // the other.
  int64_t loss_chunks = 1;
};

// Returns the trace of one iteration: forward in the preset's order, backward in reverse, then the
// updates.
//
// Each backward op keeps these tensors alive: a convolution or linear layer its input and weights,
// a ReLU its output, a max pool and an LRN both input and output, a batch normalisation its input
// and the batch statistics. Other types keep none, unless the preset holds operands. A layer works
// in place if the preset says so and no other op needs the overwritten data. In inference, dropout
// has no op. With shared forks, an activation with several consumers has one gradient, to which the
// later consumers in backward order add. If the preset says so, the gradient of the image is
// computed, although no op reads it.
//
// Layers that share a weight add to one gradient, and one op updates the weight.
//
// With several micro-batches, the trace has the layers of each ("conv1#1", "conv1#2"), forward and
// backward of one after those of the other, and the inputs are parts of the input of all samples.
// The loss of the iteration is the sum of the micro-batches' losses, each divided by the labels of
// all, so that the gradients are those of one batch with all samples, unless a layer works on the
// batch as a whole or draws random numbers.
//
// With a loss in chunks, the tokens of the batch are split into chunks that differ by at most one
// token. Each has layers of its own ("lm_head.chunk1", "loss.chunk1"), whose backward ops follow
// their forward ops directly, so that the logits of one chunk are alive at a time. A token counts
// as a sample of these layers. Their inputs and gradients are views of those of the whole batch.
//
// Clipping adds an op for each parameter that adds up the squares of its gradient, and before each
// update an op for each of its parameters that scales the gradient.
//
// Throws `UsageError` for an unknown preset, an optimizer that the preset cannot have, or options
// that the preset, the mode or the network cannot have. Throws `InputError` if a tensor is of
// impossible size.
Trace LowerNetwork(const Network& network, const LoweringOptions& options);
// Lowers under `preset`; `options.preset` is ignored.
Trace LowerNetwork(const Network& network, const LoweringOptions& options, const Preset& preset);

// Returns the workspace that vDNN's baseline counts, in bytes: the largest FFT workspace of the
// network's stride-1 convolutions whose plane, padded to a power of two, is at most 128 wide. P is
// the size of one padded plane in the frequency domain in bytes, n * (n / 2 + 1) * 8 for a plane of
// width n. Forward takes (CN + KN + CK) P. Backward data takes 2 (KN + CK) P + 4 CKRS and is
// counted for filters larger than 3x3, for which FFT is the fastest choice. See vDNN, section II-B;
// the formulas are in section 1.6 of the accounting of vDNN++.
Bytes FftBaselineWorkspace(const Trace& trace);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_LOWERING_H_
