#include "traces/zoo/zoo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

constexpr int64_t kLargestImage = 4096;

// Limits of transformers.
constexpr int64_t kMostFeatures = 1 << 20;  // also of heads, and of words in a vocabulary
constexpr int64_t kPatternLength = 64;      // gpt(...) and llama(...) may say another length

// Limits of a densely connected network: the number of blocks, and the channels that a layer adds.
constexpr size_t kMostDenseBlocks = 16;
constexpr int64_t kMostGrowth = 1024;

// The parsed name of a network. Exactly one of the members but the last is set.
struct NetworkName {
  const ZooEntry* entry = nullptr;
  std::optional<std::array<int, 4>> blocks;
  std::optional<DenseNetSpec> dense;
  std::optional<int> repetitions;
  std::optional<GptSpec> gpt;
  std::optional<LlamaSpec> llama;
  std::optional<int64_t> extent;  // the extent of the image or the sequence

  bool has_spec() const { return blocks || dense || repetitions || gpt || llama; }
  bool on_images() const { return !gpt && !llama && (entry == nullptr || entry->on_images); }
};

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const ZooEntry& entry : Zoo()) names.push_back(entry.name);
  return names;
}

// Parses the whole text as a number in [1, most].
template <typename Integer>
std::optional<Integer> ParseCount(std::string_view text, Integer most) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return std::nullopt;
  }
  return value;
}

// Parses "resnet(3,4,6,3)". Returns nullopt if the name does not begin with "resnet(".
std::optional<std::array<int, 4>> ParseBlocks(std::string_view name) {
  constexpr std::string_view kPrefix = "resnet(";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto fail = [&] {
    throw UsageError(fmt::format(
        "'{}' is not a residual network: expected resnet(n1,n2,n3,n4) with whole numbers "
        "of blocks from 1 to {}, for example resnet(3,4,6,3)",
        name, kMostBlocks));
  };
  std::string_view rest = name.substr(kPrefix.size());
  std::array<int, 4> blocks{};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t end = rest.find(i + 1 < blocks.size() ? ',' : ')');
    if (end == std::string_view::npos) fail();
    const auto count = ParseCount<int>(rest.substr(0, end), kMostBlocks);
    if (!count) fail();
    blocks[i] = *count;
    rest.remove_prefix(end + 1);
  }
  if (!rest.empty()) fail();
  return blocks;
}

// Parses "densenet(6,12,24,16,k=32)". Returns nullopt if the name does not begin with "densenet(".
std::optional<DenseNetSpec> ParseDenseNet(std::string_view name) {
  constexpr std::string_view kPrefix = "densenet(";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::string_view rest = name.substr(kPrefix.size());
  bool valid = rest.ends_with(')');
  if (valid) rest.remove_suffix(1);
  DenseNetSpec spec;
  for (size_t end = 0; valid && end != std::string_view::npos;) {
    end = rest.find(',');
    const std::string_view part = rest.substr(0, end);
    if (end != std::string_view::npos) rest.remove_prefix(end + 1);
    if (part.starts_with("k=")) {
      const auto growth = ParseCount(part.substr(2), kMostGrowth);
      valid = growth && end == std::string_view::npos;  // the growth comes last
      spec.growth = growth.value_or(0);
    } else {
      const auto layers = ParseCount<int>(part, kMostBlocks);
      valid = layers.has_value();
      spec.blocks.push_back(layers.value_or(0));
    }
  }
  if (!valid || spec.blocks.empty() || spec.blocks.size() > kMostDenseBlocks) {
    throw UsageError(fmt::format(
        "'{}' is not a densely connected network: expected densenet(n1,...,k=GROWTH) with 1 to {} "
        "whole numbers of layers from 1 to {} and, at the end, an optional growth from 1 to {} (32 "
        "by default), for example densenet(6,12,24,16,k=32)",
        name, kMostDenseBlocks, kMostBlocks, kMostGrowth));
  }
  return spec;
}

// Parses "constructed(5)". Returns nullopt if the name does not begin with "constructed(".
std::optional<int> ParseRepetitions(std::string_view name) {
  constexpr std::string_view kPrefix = "constructed(";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::string_view rest = name.substr(kPrefix.size());
  const bool closed = rest.ends_with(')');
  if (closed) rest.remove_suffix(1);
  const auto count = ParseCount<int>(rest, kMostBlocks);
  if (!closed || !count) {
    throw UsageError(fmt::format(
        "'{}' is not a constructed network: expected constructed(n) with a whole number "
        "of repetitions from 1 to {}, for example constructed(5)",
        name, kMostBlocks));
  }
  return count;
}

// Parses "FAMILY(n1,n2,...)" with one number for each of the given names, of which the second is a
// number of layers. Returns nullopt if the name does not begin with the family and "(".
template <size_t kCount>
std::optional<std::array<int64_t, kCount>> ParseSpec(
    std::string_view name, std::string_view family,
    const std::array<std::string_view, kCount>& names, std::string_view example) {
  if (!name.starts_with(family) || !name.substr(family.size()).starts_with('(')) {
    return std::nullopt;
  }
  std::string_view rest = name.substr(family.size() + 1);
  std::array<int64_t, kCount> numbers{};
  bool valid = rest.ends_with(')');
  for (size_t i = 0; valid && i < kCount; ++i) {
    const size_t end = i + 1 < kCount ? std::min(rest.find(','), rest.size()) : rest.size() - 1;
    const auto number = ParseCount(rest.substr(0, end), i == 1 ? kMostBlocks : kMostFeatures);
    valid = number && end < rest.size();
    if (!valid) break;
    numbers[i] = *number;
    rest.remove_prefix(end + 1);
  }
  if (!valid) {
    throw UsageError(
        fmt::format("'{}' is not a network: expected {}({}) with whole numbers from 1, at most {} "
                    "layers and {} of everything else, for example {}",
                    name, family, fmt::join(names, ","), kMostBlocks, kMostFeatures, example));
  }
  return numbers;
}

// Removes ",dropout=RATIO" from the end of the text and returns the ratio; returns 0 if there is
// none.
double TakeDropout(std::string& name) {
  constexpr std::string_view kKey = ",dropout=";
  const size_t at = name.find(kKey);
  if (at == std::string::npos || !name.ends_with(')')) return 0;
  const std::string_view text = std::string_view(name).substr(at + kKey.size());
  double ratio = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size() - 1, ratio);
  if (error != std::errc() || end != text.data() + text.size() - 1 || !(ratio >= 0 && ratio < 1)) {
    throw UsageError(fmt::format(
        "'{}' is not a network: the ratio of dropout is not a number from 0 and less than 1",
        name));
  }
  name.replace(at, std::string::npos, ")");
  return ratio;
}

std::optional<GptSpec> ParseGpt(std::string_view text) {
  constexpr std::array<std::string_view, 4> kNames{"width", "layers", "heads", "vocabulary"};
  std::string name(text);
  const double dropout = TakeDropout(name);
  const auto numbers =
      ParseSpec(name, "gpt", kNames, "gpt(64,2,4,100) or gpt(64,2,4,100,dropout=0.1)");
  if (!numbers) return std::nullopt;
  const auto [width, layers, heads, vocabulary] = *numbers;
  return GptSpec{width, layers, heads, vocabulary, /*positions=*/1, dropout};
}

std::optional<LlamaSpec> ParseLlama(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames{"width",    "layers", "heads",
                                                   "kv_heads", "ffn",    "vocabulary"};
  const auto numbers = ParseSpec(name, "llama", kNames, "llama(64,2,4,2,128,100)");
  if (!numbers) return std::nullopt;
  const auto [width, layers, heads, kv_heads, ffn, vocabulary] = *numbers;
  return LlamaSpec{width, layers, heads, kv_heads, ffn, vocabulary};
}

// Families of models that are often trained with PyTorch and are not built in.
constexpr std::array kImported = std::to_array<std::string_view>(
    {"bert",      "bloom", "clip",  "convnext", "deit",    "efficientnet",
     "gemma",     "gpt",   "llama", "mamba",    "mistral", "mixtral",
     "mobilenet", "opt-",  "phi-",  "qwen",     "roberta", "stable-diffusion",
     "swin",      "t5",    "unet",  "vit",      "whisper"});

[[noreturn]] void FailUnknown(std::string_view network) {
  const auto is_of = [&](std::string_view family) { return network.starts_with(family); };
  const auto family = std::ranges::find_if(kImported, is_of);
  if (family != kImported.end()) {
    std::vector<std::string> relatives = Names();
    std::erase_if(relatives, [&](const std::string& name) { return !name.starts_with(*family); });
    throw UsageError(fmt::format(
        "'{0}' is not built in{1}; import it: record a step with python3 -m spillway_torch, "
        "make a trace of it with spillway trace import, and give that file "
        "({0}.json.zst) as the workload",
        network,
        relatives.empty() ? "" : fmt::format(" (built in are {})", fmt::join(relatives, ", "))));
  }
  throw UsageError(UnknownName("network", network, Names()));
}

// Parses the name of a network. Throws `UsageError` if it is unknown or malformed.
NetworkName Parse(std::string_view text) {
  NetworkName name;
  const size_t at = text.find('@');
  const std::string_view base = text.substr(0, at);
  name.blocks = ParseBlocks(base);
  name.dense = ParseDenseNet(base);
  name.repetitions = ParseRepetitions(base);
  name.gpt = ParseGpt(base);
  name.llama = ParseLlama(base);
  for (const ZooEntry& entry : Zoo()) {
    if (entry.name == base) name.entry = &entry;
  }
  if (name.entry == nullptr && !name.has_spec()) FailUnknown(base);
  if (at == std::string_view::npos) return name;
  const int64_t most = name.on_images() ? kLargestImage : kLongestSequence;
  name.extent = ParseCount(text.substr(at + 1), most);
  if (!name.extent) {
    throw UsageError(fmt::format("'{}': the {} '{}' is not a whole number from 1 to {}", text,
                                 name.on_images() ? "image size" : "length", text.substr(at + 1),
                                 most));
  }
  return name;
}

template <int64_t kWidth, int64_t kLayers, int64_t kHeads>
Network Gpt2(std::string name, int64_t length, AttentionKind kind) {
  return BuildGpt(std::move(name), length, {kWidth, kLayers, kHeads}, kind);
}

template <int64_t kWidth, int64_t kLayers, int64_t kHeads>
Network Bert(std::string name, int64_t length, AttentionKind kind) {
  return BuildBert(std::move(name), length, {kWidth, kLayers, kHeads, 30522, 512}, kind);
}

constexpr double kDropout = 0.1;  // with which GPT-2 and BERT were trained

Network Gpt2Dropout(std::string name, int64_t length, AttentionKind kind) {
  GptSpec spec;
  spec.dropout = kDropout;
  return BuildGpt(std::move(name), length, spec, kind);
}

Network BertDropout(std::string name, int64_t length, AttentionKind kind) {
  return BuildBert(std::move(name), length, {768, 12, 12, 30522, 512, kDropout}, kind);
}

template <int64_t kWidth, int64_t kLayers, int64_t kHeads>
Network Vit(std::string name, int64_t image, AttentionKind kind) {
  return BuildVit(std::move(name), image, {kWidth, kLayers, kHeads}, kind);
}

Network Llama1B(std::string name, int64_t length, AttentionKind kind) {
  LlamaSpec spec{.width = 2048, .layers = 16, .ffn = 8192};
  spec.tied = true;
  return BuildLlama(std::move(name), length, spec, kind);
}

Network Llama8B(std::string name, int64_t length, AttentionKind kind) {
  return BuildLlama(std::move(name), length, {}, kind);
}

template <int... kConvs>
Network Vgg(std::string name, int64_t image) {
  return BuildVgg(std::move(name), image, {kConvs...});
}

template <ResidualBlock kBlock, int... kBlocks>
Network ResNet(std::string name, int64_t image) {
  return BuildResNet(std::move(name), image, kBlock, {kBlocks...});
}

template <Normalization kNormalization>
Network Inception(std::string name, int64_t image) {
  return BuildInceptionV4(std::move(name), image, kNormalization);
}

template <int64_t kGrowth, int... kBlocks>
Network DenseNet(std::string name, int64_t image) {
  return BuildDenseNet(std::move(name), image, {.blocks = {kBlocks...}, .growth = kGrowth});
}

Network DenseNet40(std::string name, int64_t image) {
  return BuildDenseNet(std::move(name), image,
                       {.blocks = {12, 12, 12}, .growth = 40, .bottleneck = false, .classes = 10});
}

}  // namespace

const std::vector<ZooEntry>& Zoo() {
  constexpr ResidualBlock kBasic = ResidualBlock::kBasic;
  constexpr ResidualBlock kBottleneck = ResidualBlock::kBottleneck;
  static const std::vector<ZooEntry> zoo{
      {"alexnet", "AlexNet, one-weird-trick variant, 224x224 (convnet-benchmarks; vDNN)", 224,
       BuildAlexNet},
      {"alexnet-227", "AlexNet, one tower, LRN and dropout, 227x227 (SuperNeurons)", 227,
       BuildAlexNet227},
      {"alexnet-caffe", "AlexNet as Caffe has it: LRN, dropout, grouped, 227x227 (u-cuDNN)", 227,
       BuildAlexNetCaffe},
      {"vgg-s", "VGG-S: 5 convolutions, the first 7x7, LRN, dropout (Chatfield et al. 2014; mmCNN)",
       224, BuildVggS},
      {"alexnet-plain", "AlexNet, one tower, neither LRN nor dropout, 227x227 (vDNN++)", 227,
       BuildAlexNetPlain},
      {"overfeat", "OverFeat, fast model, 231x231 (convnet-benchmarks; vDNN)", 231, BuildOverFeat},
      {"googlenet", "GoogLeNet, no auxiliary classifiers, no LRN (convnet-benchmarks; vDNN)", 224,
       BuildGoogLeNet},
      {"vgg16", "VGG configuration D: 13 convolutions (Simonyan and Zisserman 2015)", 224,
       Vgg<2, 2, 3, 3, 3>},
      {"vgg19", "VGG configuration E: 16 convolutions, called VGG-16 by vDNN", 224,
       Vgg<2, 2, 4, 4, 4>},
      {"vgg116", "VGG-E with 20 more convolutions per group (vDNN, very deep)", 224,
       Vgg<22, 22, 24, 24, 24>},
      {"vgg216", "VGG-E with 40 more convolutions per group (vDNN, very deep)", 224,
       Vgg<42, 42, 44, 44, 44>},
      {"vgg316", "VGG-E with 60 more convolutions per group (vDNN, very deep)", 224,
       Vgg<62, 62, 64, 64, 64>},
      {"vgg416", "VGG-E with 80 more convolutions per group (vDNN, very deep)", 224,
       Vgg<82, 82, 84, 84, 84>},
      {"vgg116-d", "VGG-D with 20 more convolutions per group (vDNN++)", 224,
       Vgg<22, 22, 23, 23, 23>},
      {"vgg191-d", "VGG-D with 35 more convolutions per group (vDNN++)", 224,
       Vgg<37, 37, 38, 38, 38>},
      {"resnet18", "ResNet-18, basic blocks (He et al. 2016)", 224, ResNet<kBasic, 2, 2, 2, 2>},
      {"resnet50", "ResNet-50, bottlenecks (He et al. 2016)", 224, ResNet<kBottleneck, 3, 4, 6, 3>},
      {"resnet101", "ResNet-101, bottlenecks (He et al. 2016)", 224,
       ResNet<kBottleneck, 3, 4, 23, 3>},
      {"resnet152", "ResNet-152, bottlenecks (He et al. 2016)", 224,
       ResNet<kBottleneck, 3, 8, 36, 3>},
      {"inception-v4", "Inception v4, batch normalisation after every convolution, 299x299", 299,
       Inception<Normalization::kEveryConv>},
      {"inception-v4-nobn",
       "Inception v4, batch normalisation after the first convolution alone (SuperNeurons)", 299,
       Inception<Normalization::kFirstConv>},
      {"densenet121", "DenseNet-121, growth 32 (Huang et al. 2017)", 224,
       DenseNet<32, 6, 12, 24, 16>},
      {"densenet169", "DenseNet-169, growth 32 (Huang et al. 2017)", 224,
       DenseNet<32, 6, 12, 32, 32>},
      {"densenet201", "DenseNet-201, growth 32 (Huang et al. 2017)", 224,
       DenseNet<32, 6, 12, 48, 32>},
      {"densenet161", "DenseNet-161, growth 48 (Huang et al. 2017)", 224,
       DenseNet<48, 6, 12, 36, 24>},
      {"densenet40", "DenseNet-40, growth 40, no bottlenecks, 32x32 (u-cuDNN)", 32, DenseNet40},
      {"gpt2", "GPT-2, 124M parameters, 1024 tokens (Radford et al. 2019)", 1024, nullptr,
       Gpt2<768, 12, 12>, false},
      {"gpt2-medium", "GPT-2, 355M parameters", 1024, nullptr, Gpt2<1024, 24, 16>, false},
      {"gpt2-large", "GPT-2, 774M parameters", 1024, nullptr, Gpt2<1280, 36, 20>, false},
      {"gpt2-xl", "GPT-2, 1558M parameters", 1024, nullptr, Gpt2<1600, 48, 25>, false},
      {"bert-base", "BERT, masked language model, 512 tokens (Devlin et al. 2019)", 512, nullptr,
       Bert<768, 12, 12>, false},
      {"bert-large", "BERT, masked language model, 24 layers", 512, nullptr, Bert<1024, 24, 16>,
       false},
      {"gpt2-dropout", "GPT-2, 124M parameters, dropout of 0.1", 1024, nullptr, Gpt2Dropout, false},
      {"bert-base-dropout", "BERT, masked language model, dropout of 0.1", 512, nullptr,
       BertDropout, false},
      {"vit-b16", "Vision transformer, base, 16x16 patches (Dosovitskiy et al. 2021)", 224, nullptr,
       Vit<768, 12, 12>},
      {"vit-l16", "Vision transformer, large, 16x16 patches", 224, nullptr, Vit<1024, 24, 16>},
      {"llama-1b", "Llama 3.2 1B, tied embeddings, 2048 tokens (Grattafiori et al. 2024)", 2048,
       nullptr, Llama1B, false},
      {"llama-8b", "Llama 3 8B, 2048 tokens (Grattafiori et al. 2024)", 2048, nullptr, Llama8B,
       false},
  };
  return zoo;
}

const std::vector<std::pair<std::string, std::string>>& ZooPatterns() {
  static const std::vector<std::pair<std::string, std::string>> patterns{
      {"resnet(n1,n2,n3,n4)", "ResNet with n1 to n4 bottlenecks in its four stages (SuperNeurons)"},
      {"densenet(n1,...,k=GROWTH)",
       "DenseNet with n1, n2, ... layers in its blocks; the default growth is 32"},
      {"constructed(n)",
       "n pairs of a 1x1 and a 5x5 convolution: fast and long layers alternate (vDNN++, Table "
       "III)"},
      {"gpt(width,layers,heads,vocabulary)",
       "GPT-2 of any size, 64 tokens; gpt(...,dropout=0.1) has dropout"},
      {"llama(width,layers,heads,kv_heads,ffn,vocabulary)",
       "Llama of any size, 64 tokens, embeddings not tied"},
      {"NETWORK@IMAGE", "any of these for images of another size: resnet50@227, vgg16@227"},
      {"NETWORK@LENGTH", "GPT, BERT and Llama for sequences of another length: gpt2@512"},
  };
  return patterns;
}

Network BuildNetwork(std::string_view text, AttentionKind kind) {
  const NetworkName parsed = Parse(text);
  std::string name(text);
  const int64_t image = parsed.extent.value_or(224);
  const int64_t length = parsed.extent.value_or(kPatternLength);
  if (parsed.repetitions) return BuildConstructed(std::move(name), image, *parsed.repetitions);
  if (parsed.blocks) {
    return BuildResNet(std::move(name), image, ResidualBlock::kBottleneck, *parsed.blocks);
  }
  if (parsed.dense) return BuildDenseNet(std::move(name), image, *parsed.dense);
  if (parsed.gpt) return BuildGpt(std::move(name), length, *parsed.gpt, kind);
  if (parsed.llama) return BuildLlama(std::move(name), length, *parsed.llama, kind);
  const ZooEntry& entry = *parsed.entry;
  const int64_t extent = parsed.extent.value_or(entry.extent);
  if (entry.build != nullptr) return entry.build(std::move(name), extent);
  return entry.build_transformer(std::move(name), extent, kind);
}

int64_t LengthOf(std::string_view network) {
  const NetworkName parsed = Parse(network);
  if (parsed.on_images()) {
    throw UsageError(fmt::format(
        "'{}' reads images, and has no length: expected GPT, BERT or Llama, such as gpt2@1024",
        network));
  }
  return parsed.extent.value_or(parsed.entry ? parsed.entry->extent : kPatternLength);
}

std::string WithLength(std::string_view network, int64_t length) {
  return fmt::format("{}@{}", network.substr(0, network.find('@')), length);
}

std::string Workload::Name() const { return fmt::format("{}:{}", network, batch); }

Workload ParseWorkload(std::string_view text) {
  if (text.find(".pickle") != std::string_view::npos) {
    throw UsageError(
        fmt::format("'{0}' is a memory snapshot, not a workload: `spillway replay {0}` says who "
                    "held the memory and what helps; its --format json -o FILE.json is a source "
                    "of `spillway report`",
                    text));
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    throw UsageError(
        fmt::format("'{}' is not a workload: expected NETWORK:BATCH, for example vgg16:256, or the "
                    "path of a trace file (.json, .json.zst)",
                    text));
  }
  Workload workload{std::string(text.substr(0, colon))};
  static_cast<void>(Parse(workload.network));
  const std::string_view batch = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(batch.data(), batch.data() + batch.size(), workload.batch);
  if (error != std::errc() || end != batch.data() + batch.size() || workload.batch < 1 ||
      workload.batch > kLargestBatch) {
    throw UsageError(fmt::format("'{}': the batch '{}' is not a whole number from 1 to {}", text,
                                 batch, kLargestBatch));
  }
  return workload;
}

}  // namespace spillway::traces
