// The divided inference of mmCNN (Li et al. 2020): the trace in which convolutions and linear
// layers run slice by slice over their output channels, each slice with its own part of the
// weights.
//
// A slice writes a view of the layer's output, so that what follows finds the whole. Where whole
// maps do not fit, layers of all kinds run in bands of rows besides (mmcnn_bands.h). Only ops of
// batch 1 can be divided, for the channels of a larger batch lie apart.

#ifndef SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_
#define SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_

#include <cstdint>
#include <vector>

#include "policies/registry.h"
#include "traces/trace.h"

namespace spillway {

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
  // By tensor: the first op during which the parameter may be prefetched, for its segment begins
  // there. Of use for parameters only.
  std::vector<OpId> prefetch_from;
};

struct MmcnnRule {
  int64_t most_parts = 5;  // pnmax: of weights that are prefetched in parts
  int64_t ahead = 1;       // segments by which they are prefetched early: 1 is the paper's
  bool divide = true;      // false: ops are left as they are
};

// As many slices of each op as Algorithm 1 says for the limit (`ScheduleMmcnn`), and where whole
// maps leave less room than it counts on, as many more as fit beside them; as many as there can be
// where even those do not fit.
DividedInference DivideForMmcnn(const Trace& trace, Bytes limit, Bytes alignment,
                                const MmcnnRule& rule = {});

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_MMCNN_LAYER_SPLIT_H_
