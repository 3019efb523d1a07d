// The divided inference of mmCNN (Li et al. 2020): the trace in which convolutions and linear
// layers run slice by slice over their output channels, each slice with its own part of the
// weights.
//
// A slice writes a view of the layer's output, so that later ops find the whole output. Where whole
// maps do not fit, layers of all kinds also run in bands of rows (bands.h). Only ops of batch 1 can
// be divided, because the channels of a larger batch lie apart.

#ifndef SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_
#define SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_

#include <cstdint>
#include <vector>

#include "policies/registry.h"
#include "traces/trace.h"

namespace spillway::policies {

// Returns the least memory that the device must have when all parameters are outside between the
// ops that use them. Each op is divided as finely as it can be, or not divided if `divide` is
// false. Blocks are rounded up to `alignment`; workspaces are not counted. Throws `InputError` if
// attributes and shapes of an op do not agree.
LeastMemory LeastMmcnnMemory(const Trace& trace, Bytes alignment, bool divide = true);
// Returns true if that least memory is at most `limit`. As a rule it is much faster than computing
// the least memory. Throws as `LeastMmcnnMemory`.
bool FitsMmcnn(const Trace& trace, Bytes limit, Bytes alignment, bool divide);

struct DividedInference {
  Trace trace;
  // By tensor: the first op during which a parameter may be prefetched, because its segment begins
  // there. The entries of other tensors have no meaning.
  std::vector<OpId> prefetch_from;
};

struct MmcnnRule {
  int64_t most_parts = 5;  // pnmax: the most parts in which weights are prefetched
  int64_t ahead = 1;       // segments by which weights are prefetched early; the paper has 1
  bool divide = true;      // false: ops stay as they are
};

// Returns the trace with each op in as many slices as Algorithm 1 (`ScheduleMmcnn`) gives for the
// limit. If whole maps leave less room than the algorithm counts on, an op gets more slices, until
// a slice and the maps fit together, or the most possible if no number fits.
DividedInference DivideForMmcnn(const Trace& trace, Bytes limit, Bytes alignment,
                                const MmcnnRule& rule = {});

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_
