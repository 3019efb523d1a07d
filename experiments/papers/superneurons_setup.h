// The names of networks, GPUs, preset and pool of SuperNeurons (Wang et al., PPoPP 2018), and how
// it counts memory: outputs of layers and gradients of activations, without image, labels,
// statistics, parameters and workspaces. Private to superneurons*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/papers/paper.h"

namespace spillway::lab::superneurons {

inline constexpr std::string_view kPaper = "superneurons";  // the paper, its policy and preset
inline constexpr const char* kGpu = "k40c";
inline constexpr const char* kSpeedGpu = "titan_xp";  // the GPU of Fig. 14
// The paper's pool (section 3.2.1).
inline constexpr const char* kPool = "first-fit:granularity=1KiB";

// The zoo's names of the networks of Table 5 and most figures.
inline constexpr std::array kNetworks{"alexnet-227",  "vgg16@227",     "inception-v4",
                                      "resnet50@227", "resnet101@227", "resnet152@227"};

// A framework of Tables 4 and 5.
struct Framework {
  std::string_view name;    // the paper's name
  std::string_view policy;  // the policy that has its rules
  std::string_view preset;  // the preset under which it is run
};
inline constexpr std::array kFrameworks{
    Framework{"Caffe", "caffe", "torch"},
    Framework{"MXNet", "mxnet", "torch"},
    Framework{"Torch", "torch", "torch"},
    Framework{"TensorFlow", "tensorflow", "torch"},
    Framework{"SuperNeurons", "superneurons", "superneurons"},
};

// Returns the paper's names of networks with the usual batches of AlexNet and of the other
// networks. The released networks take images of 227 x 227.
PaperNames Names(int64_t alexnet = 200, int64_t others = 32);

// Returns a row for each network at its usual batch.
std::vector<PaperRow> RowsOf(const PaperNames& names, std::span<const char* const> networks);

// Returns the paper's name of a network of the zoo.
std::string NameOf(std::string_view network);

// Returns the batch that Table 5 prints; nullopt if it prints "N/A".
std::optional<int64_t> PrintedBatch(const PaperValues& printed, std::string_view network,
                                    const Framework& framework);

// The number and bytes of tensors that the paper counts. Each storage counts once.
struct Total {
  int tensors = 0;
  Bytes bytes;
};
Total CountedStorages(const Trace& trace);

// Returns the bytes that all layers hold together: the counted tensors without the first copy of
// each fork, and parameters with their gradients and momentum.
Bytes NetworkMemory(const Trace& trace);

// Returns Tables 2 and 3 and Figs. 2, 8 and 11 to 14: time, copies, pools and workspaces.
std::vector<PaperTable> SpeedTables(const PaperValues& printed);
// Returns Tables 4 and 5: the limits of five frameworks.
std::vector<PaperTable> LimitTables(const PaperValues& printed);

}  // namespace spillway::lab::superneurons

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_SUPERNEURONS_SETUP_H_
