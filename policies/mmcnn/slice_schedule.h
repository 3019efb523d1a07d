// Algorithm 1 of mmCNN (Li et al. 2020), as its Tables 3 to 6 imply it. It decides into how many
// parts each layer of an inference is split, and where its weights are fetched, so that no layer
// takes more memory than a limit.
//
// A segment consists of the layers after a layer with weights, up to and including the next layer
// with weights. The weights of a segment's last layer are prefetched while the other layers run, in
// as many parts as it takes for a part and these layers to fit. If that takes too many parts, the
// layer loads its weights itself, part by part. Sizes are real numbers of bytes, because the paper
// does not round feature maps.

#ifndef SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_
#define SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::policies {

struct MmcnnLayer {
  double maps = 0;  // bytes of its feature maps: input and output, or only one if it works in place
  double weights = 0;  // bytes, with biases; 0 for a layer that has none
};

struct MmcnnStep {
  int64_t parts = 1;  // sn, "self_number": the parts of the layer's work
  int64_t prefetched =
      0;              // cn, "conv_number": parts of the weights fetched from here on, at the
                      // first layer of a segment; 0 elsewhere and where they are not prefetched
  double memory = 0;  // bytes that the layer takes, with the part of weights charged to it
};

// Returns one step for each layer. Weights are prefetched in at most `most_parts` parts (pnmax). A
// layer whose maps alone fill the limit takes more memory than the limit. REQUIRES: limit > 0.
std::vector<MmcnnStep> ScheduleMmcnn(std::span<const MmcnnLayer> layers, double limit,
                                     int64_t most_parts = 5);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_
