// Algorithm 1 of mmCNN (Li et al. 2020), as its Tables 3 to 6 imply it: into how many parts a layer
// of an inference is split, and where its weights are fetched, so that no layer takes more than a
// limit.
//
// Layers come in segments, each the layers after one with weights up to and including the next. The
// weights of a segment's last layer are prefetched while the others run, in as many parts as leave
// room for them; where that takes too many parts, the layer loads them itself, part by part. Sizes
// are real numbers of bytes, for the paper's feature maps are not rounded.

#ifndef SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_
#define SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

struct MmcnnLayer {
  double maps = 0;     // bytes of its feature maps: input and output, or one of them in place
  double weights = 0;  // bytes, with biases; 0 for a layer that has none
};

struct MmcnnStep {
  int64_t parts = 1;  // sn, "self_number": of the layer's work
  int64_t prefetched =
      0;              // cn, "conv_number": parts of the weights fetched from here on, at the
                      // first layer of a segment; 0 elsewhere and where they are not prefetched
  double memory = 0;  // bytes that the layer takes, with the part of weights charged to it
};

// One step for each layer. Weights are prefetched in `most_parts` parts at most (pnmax). REQUIRES:
// limit > 0. A layer whose maps alone fill the limit takes more than it.
std::vector<MmcnnStep> ScheduleMmcnn(std::span<const MmcnnLayer> layers, double limit,
                                     int64_t most_parts = 5);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_MMCNN_SLICE_SCHEDULE_H_
