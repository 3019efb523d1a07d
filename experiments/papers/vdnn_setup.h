// The names of networks and the unit of vDNN (Rhu et al., MICRO 2016). Private to vdnn*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_

#include <vector>

#include "experiments/papers/paper.h"
#include "traces/lowering/lowering.h"

namespace spillway::lab::vdnn {

// The paper's VGG-16 is configuration E, the zoo's vgg19.
inline PaperNames Names() {
  return {.networks = {{"AlexNet", "alexnet"},
                       {"OverFeat", "overfeat"},
                       {"GoogLeNet", "googlenet"},
                       {"VGG-16", "vgg19"},
                       {"VGG-116", "vgg116"},
                       {"VGG-216", "vgg216"},
                       {"VGG-316", "vgg316"},
                       {"VGG-416", "vgg416"}},
          .ignored = "- "};
}

// Returns the bytes in the paper's GB of 1000 MiB.
inline double InUnits(Bytes bytes) { return bytes.mib() / 1000; }

// Returns the tables of the figures and of the text's claims.
std::vector<PaperTable> Figures();

}  // namespace spillway::lab::vdnn

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_
