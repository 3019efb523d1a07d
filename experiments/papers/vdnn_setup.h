// What the tables of vDNN (Rhu et al., MICRO 2016) have in common: the paper's names of networks,
// its GPU and its unit. Private to vdnn*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_

#include <vector>

#include "experiments/papers/paper.h"
#include "experiments/papers/scene.h"
#include "traces/lowering/lowering.h"

namespace spillway::vdnn {

// Its VGG-16 is configuration E.
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

inline Scene SceneOf(const PaperRow& row) { return {row.workload, "vdnn", row.machine}; }

// In the paper's GB of 1000 MiB.
inline double InUnits(Bytes bytes) {
  return static_cast<double>(bytes.count()) /
         static_cast<double>(FindPreset("vdnn").counting.bytes_per_unit.count());
}

// The figures and the claims of the text.
std::vector<PaperTable> Figures();

}  // namespace spillway::vdnn

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_VDNN_SETUP_H_
