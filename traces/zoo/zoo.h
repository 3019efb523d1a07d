// The network zoo: the architectures that the papers evaluate, and transformers, by name.

#ifndef SPILLWAY_TRACES_ZOO_ZOO_H_
#define SPILLWAY_TRACES_ZOO_ZOO_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/lowering/graph.h"

namespace spillway::traces {

// The largest batch of a workload, and the largest number of blocks of a stage or of repetitions.
inline constexpr int64_t kLargestBatch = 65536;
inline constexpr int64_t kMostBlocks = 10'000;
// The longest sequence of a network.
inline constexpr int64_t kLongestSequence = 1 << 20;

// An entry has one of the two builders, which fits its kind.
struct ZooEntry {
  std::string name;
  std::string description;  // variant and source
  int64_t extent = 224;     // height and width of images, or length of a sequence
  Network (*build)(std::string name, int64_t image) = nullptr;
  Network (*build_transformer)(std::string name, int64_t extent, AttentionKind kind) = nullptr;
  bool on_images = true;  // false: on sequences of tokens
};

// Returns all networks in the order in which they are listed.
const std::vector<ZooEntry>& Zoo();

// Returns patterns of further names of networks, with descriptions:
// - "resnet(3,4,6,3)": residual networks of any depth
// - "densenet(6,12,24,16,k=32)": densely connected networks of any depth and growth
// - "constructed(5)": the network that vDNN++ constructs, with any number of repetitions
// - "gpt(64,2,4,100)", "llama(64,2,4,2,128,100)": transformers of any width and depth
// - NAME@IMAGE: any network for square images of another size, such as "vgg16@227"
// - NAME@LENGTH: a network for sequences of another length, such as "gpt2@512"
const std::vector<std::pair<std::string, std::string>>& ZooPatterns();

// Builds a network by name. The kind of attention concerns transformers only. If the name is
// unknown, throws a `UsageError` with a suggestion and the valid names. Throws an `InputError` that
// names a layer if the network cannot be built for the image size, or has heads of no whole width.
Network BuildNetwork(std::string_view name, AttentionKind kind = AttentionKind::kFused);

// Returns the number of tokens in the sequences of a network: 1024 for "gpt2". Throws `UsageError`
// if the network is unknown, or reads images.
int64_t LengthOf(std::string_view network);
// Returns the name of a network for sequences of another length: "gpt2@512" for "gpt2" or
// "gpt2@64". REQUIRES: `network` has a length, and `length` is in [1, kLongestSequence].
std::string WithLength(std::string_view network, int64_t length);

// A network and a batch size: "vgg19:256".
struct Workload {
  std::string network;
  int64_t batch = 1;

  std::string Name() const;
};

// Throws `UsageError` if there is no colon, the network is unknown, or the batch is not in [1,
// 65536].
Workload ParseWorkload(std::string_view text);

// Builders, one file per family. `image` is the height and width of the input.
Network BuildAlexNet(std::string name, int64_t image);     // "one weird trick", no LRN (vDNN)
Network BuildAlexNet227(std::string name, int64_t image);  // one tower, LRN, dropout (SuperNeurons)
Network BuildAlexNetCaffe(std::string name, int64_t image);  // AlexNet227 in two groups (u-cuDNN)
Network BuildVggS(std::string name, int64_t image);          // slow and accurate (mmCNN)
// One tower, no LRN, no dropout (vDNN++).
Network BuildAlexNetPlain(std::string name, int64_t image);
Network BuildOverFeat(std::string name, int64_t image);   // fast model
Network BuildGoogLeNet(std::string name, int64_t image);  // no auxiliary classifiers, no LRN
// Builds a VGG with `convs[i]` 3x3 convolutions in group i, of 64, 128, 256, 512, 512 channels.
Network BuildVgg(std::string name, int64_t image, const std::vector<int>& convs);

// Builds the network that vDNN++ constructs to alternate fast and long layers: `repetitions` pairs
// of a 1x1 and a 5x5 convolution of 64 channels. Table III of vDNN++ has 5.
Network BuildConstructed(std::string name, int64_t image, int repetitions);

// The residual block of a network: two 3x3 convolutions, or 1x1, 3x3 and 1x1 convolutions with four
// times the channels at the end. The first convolution has the stride. He et al. 2016, figure 5.
enum class ResidualBlock { kBasic, kBottleneck };
// Builds a ResNet with `blocks[i]` blocks in stage i, of 64, 128, 256, 512 channels. pool1 is
// padded only if the stages could not halve its output evenly otherwise: at 224 (112 to 56) and not
// at 227 (114 to 56, SuperNeurons).
Network BuildResNet(std::string name, int64_t image, ResidualBlock block,
                    const std::array<int, 4>& blocks);

// Inception v4 (Szegedy et al. 2017) with a batch normalisation after every convolution, or after
// the first convolution only, as in the released SuperNeurons.
enum class Normalization { kEveryConv, kFirstConv };
Network BuildInceptionV4(std::string name, int64_t image, Normalization normalization);

// A densely connected network: in a block, each layer reads the outputs of all earlier layers.
// Huang et al. 2017.
struct DenseNetSpec {
  std::vector<int> blocks;  // layers in each block; at least one block
  int64_t growth = 32;      // channels that a layer adds
  // True for DenseNet-BC, the variant for large images: a 1x1 convolution before each 3x3
  // convolution, halved channels between blocks, and a pooled stem. False for the plain variant for
  // images of 32x32.
  bool bottleneck = true;
  int64_t classes = 1000;
};
Network BuildDenseNet(std::string name, int64_t image, const DenseNetSpec& spec);

// The transformers below have no dropout unless it is asked for, and then none of the probabilities
// of attention. The projections to queries, keys and values are three
// linear layers, whose parameters some of the originals keep in one. GELU is the exact form.

// GPT-2 (Radford et al. 2019) and BERT (Devlin et al. 2019). The table of positions has `positions`
// rows, or as many as the sequence is long if it is longer. The last linear layer shares the weight
// of the embedding.
struct GptSpec {
  int64_t width = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t vocabulary = 50257;
  int64_t positions = 1024;
  double dropout = 0;  // the ratio, behind the embeddings and before each sum
};
Network BuildGpt(std::string name, int64_t length, const GptSpec& spec, AttentionKind kind);
// Builds BERT with the head for masked language modelling, and a loss of each token. The first half
// of the sequence is one segment, the second half another.
Network BuildBert(std::string name, int64_t length, const GptSpec& spec, AttentionKind kind);

// The vision transformer (Dosovitskiy et al. 2021) with a class token and 1000 classes.
struct VitSpec {
  int64_t width = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t patch = 16;
};
Network BuildVit(std::string name, int64_t image, const VitSpec& spec, AttentionKind kind);

// Llama (Touvron et al. 2023; Grattafiori et al. 2024), without the scaling of rotary frequencies
// for long contexts.
struct LlamaSpec {
  int64_t width = 4096;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t ffn = 14336;
  int64_t vocabulary = 128256;
  double theta = 500'000;
  bool tied = false;  // the last linear layer shares the weight of the embedding
};
Network BuildLlama(std::string name, int64_t length, const LlamaSpec& spec, AttentionKind kind);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_ZOO_ZOO_H_
