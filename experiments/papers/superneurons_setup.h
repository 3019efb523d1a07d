// What the tables of SuperNeurons (Wang et al., PPoPP 2018) have in common: the paper's names of
// networks, its GPU, preset and pool, and what it counts: outputs of layers and gradients of
// activations; no image, labels, statistics, parameters or workspaces. Private to superneurons*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/papers/paper.h"
#include "experiments/papers/scene.h"

namespace spillway::superneurons {

inline constexpr std::string_view kPaper = "superneurons";  // also its policy and preset
inline constexpr const char* kGpu = "k40c";
inline constexpr const char* kSpeedGpu = "titan_xp";  // of Fig. 14
// The paper's pool (section 3.2.1).
inline constexpr const char* kPool = "first-fit:granularity=1KiB";

// Of Table 5 and most figures, as the zoo has them.
inline constexpr std::array kNetworks{"alexnet-227",  "vgg16@227",     "inception-v4",
                                      "resnet50@227", "resnet101@227", "resnet152@227"};

// Of Tables 4 and 5.
struct Framework {
  std::string_view name;    // as the paper prints it
  std::string_view policy;  // and the preset that it is run under
  std::string_view preset;
};
inline constexpr std::array kFrameworks{
    Framework{"Caffe", "caffe", "torch"},
    Framework{"MXNet", "mxnet", "torch"},
    Framework{"Torch", "torch", "torch"},
    Framework{"TensorFlow", "tensorflow", "torch"},
    Framework{"SuperNeurons", "superneurons", "superneurons"},
};

// The released networks take images of 227. AlexNet has a larger batch than the others.
PaperNames Names(int64_t alexnet = 200, int64_t others = 32);

// A row for each network, at its usual batch.
std::vector<PaperRow> RowsOf(const PaperNames& names, std::span<const char* const> networks);

// As the paper writes it.
std::string NameOf(std::string_view network);

// The batch that Table 5 prints; nullopt: "N/A".
std::optional<int64_t> PrintedBatch(const PaperValues& printed, std::string_view network,
                                    const Framework& framework);

// Where the GPU does not matter: on the model of a K40c, that of Tables 4 and 5.
Scene SceneOf(const Workload& workload);
// Where it does.
Scene SceneOf(const PaperRow& row);

// Tensors that the paper counts, each storage once: how many, and their bytes.
struct Total {
  int tensors = 0;
  Bytes bytes;
};
Total CountedStorages(const Trace& trace);

// What all layers together hold: the counted tensors but the first copy of each fork, and
// parameters with their gradients and momentum.
Bytes NetworkMemory(const Trace& trace);

// Tables 2 and 3, Figs. 2, 8 and 11 to 14: time, copies, pools and workspaces.
std::vector<PaperTable> SpeedTables(const PaperValues& printed);
// Tables 4 and 5: the limits of five frameworks.
std::vector<PaperTable> LimitTables(const PaperValues& printed);

}  // namespace spillway::superneurons

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_
