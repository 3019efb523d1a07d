// The trace of a recorded step of a language model whose loss is computed in chunks of its tokens.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_LOSS_IN_CHUNKS_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_LOSS_IN_CHUNKS_H_

#include <cstdint>
#include <optional>

#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the step that splits the rows which the product of the logits reads into `chunks` parts,
// and computes logits, loss and the gradients of both for one part after the other, as the option
// loss-chunks of a network does. Gradients of parameters are added up, and each gradient of a part
// of the rows is copied to its place. The ops of a part take their share of the recorded time.
//
// Returns nullopt if the step does not train, has no cross-entropy of the outputs of one product or
// several, has one row for each sample or fewer, or uses logits or their gradients for something
// else. REQUIRES: the trace has a recording, and 1 < chunks.
std::optional<Trace> WithLossInChunks(const Trace& trace, const Device& device, int64_t chunks);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_LOSS_IN_CHUNKS_H_
