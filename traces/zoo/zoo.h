// The network zoo: the architectures that the papers evaluate, by name.

#ifndef SPILLWAY_TRACES_ZOO_ZOO_H_
#define SPILLWAY_TRACES_ZOO_ZOO_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/lowering/graph.h"

namespace spillway {

// The largest batch of a workload, and the most blocks of a stage, or repetitions.
inline constexpr int64_t kLargestBatch = 65536;
inline constexpr int64_t kMostBlocks = 10'000;

struct ZooEntry {
  std::string name;
  std::string description;  // variant and source
  int64_t image = 224;      // height and width
  Network (*build)(std::string name, int64_t image);
};

// All networks, in the order in which they should be listed.
const std::vector<ZooEntry>& Zoo();

// What names besides those of the zoo a network can have, with descriptions: residual networks of
// any depth, "resnet(3,4,6,3)", densely connected ones of any depth and growth,
// "densenet(6,12,24,16,k=32)", the network that vDNN++ constructs, with any number of repetitions,
// "constructed(5)", and NAME@IMAGE, any network for square images of another size: "vgg16@227".
const std::vector<std::pair<std::string, std::string>>& ZooPatterns();

// Throws `UsageError` with a suggestion and the valid names, or `InputError` that names a layer if
// the network cannot be built for images of the size given.
Network BuildNetwork(std::string_view name);

// A network and a batch size: "vgg19:256".
struct Workload {
  std::string network;
  int64_t batch = 1;

  std::string Name() const;
};

// Throws `UsageError`: no colon, an unknown network, or a batch that is not in [1, 65536].
Workload ParseWorkload(std::string_view text);

// Builders, one file per family. `image` is the height and width of the input.
Network BuildAlexNet(std::string name, int64_t image);     // "one weird trick", no LRN (vDNN)
Network BuildAlexNet227(std::string name, int64_t image);  // one tower, LRN, dropout (SuperNeurons)
Network BuildAlexNetCaffe(std::string name, int64_t image);  // likewise, grouped (u-cuDNN)
Network BuildVggS(std::string name, int64_t image);          // slow and accurate (mmCNN)
// One tower, no LRN, no dropout (vDNN++).
Network BuildAlexNetPlain(std::string name, int64_t image);
Network BuildOverFeat(std::string name, int64_t image);   // fast model
Network BuildGoogLeNet(std::string name, int64_t image);  // no auxiliary classifiers, no LRN
// VGG with `convs[i]` 3x3 convolutions in group i, of 64, 128, 256, 512, 512 channels.
Network BuildVgg(std::string name, int64_t image, const std::vector<int>& convs);

// The network that vDNN++ constructs to alternate fast and long layers: `repetitions` pairs of a
// 1x1 and a 5x5 convolution of 64 channels. Table III there has 5.
Network BuildConstructed(std::string name, int64_t image, int repetitions);

// The residual block of a network: two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times the
// channels, of which the first has the stride. He et al. 2016, figure 5.
enum class ResidualBlock { kBasic, kBottleneck };
// ResNet with `blocks[i]` blocks in stage i, of 64, 128, 256, 512 channels. pool1 is padded only if
// the stages could not halve its output evenly otherwise: at 224 (112 to 56) and not at 227 (114 to
// 56, SuperNeurons).
Network BuildResNet(std::string name, int64_t image, ResidualBlock block,
                    const std::array<int, 4>& blocks);

// Inception v4 (Szegedy et al. 2017) with a batch normalisation after every convolution, or after
// the first one alone, as in the released SuperNeurons.
enum class Normalization { kEveryConv, kFirstConv };
Network BuildInceptionV4(std::string name, int64_t image, Normalization normalization);

// A densely connected network: in a block each layer reads what all before it gave. Huang et al.
// 2017.
struct DenseNetSpec {
  std::vector<int> blocks;  // layers in each, at least one block
  int64_t growth = 32;      // channels that a layer adds
  // DenseNet-BC for large images: a 1x1 convolution before each 3x3 one, halved channels between
  // blocks, and a pooled stem. Without: the plain variant for images of 32x32.
  bool bottleneck = true;
  int64_t classes = 1000;
};
Network BuildDenseNet(std::string name, int64_t image, const DenseNetSpec& spec);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_ZOO_ZOO_H_
