// Lowering: from a network to the trace of one iteration, under a named accounting preset.
//
// Frameworks and papers differ in what runs in place, what backward keeps and when parameters are
// updated, and so in how much memory the same network needs. A preset names one such set of rules.
// Presets describe accounting; the traces they give also execute.

#ifndef SPILLWAY_TRACES_LOWERING_LOWERING_H_
#define SPILLWAY_TRACES_LOWERING_LOWERING_H_

#include <cstdint>
#include <string>

#include "traces/base/units.h"
#include "traces/lowering/graph.h"
#include "traces/lowering/preset.h"
#include "traces/trace.h"

namespace spillway {

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

#endif  // SPILLWAY_TRACES_LOWERING_LOWERING_H_
