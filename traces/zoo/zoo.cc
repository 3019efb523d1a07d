#include "traces/zoo/zoo.h"

#include <fmt/format.h>

#include <charconv>

#include "sim/core/error.h"

namespace spillway {
namespace {

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const ZooEntry& entry : Zoo()) names.push_back(entry.name);
  return names;
}

const ZooEntry& Find(std::string_view name) {
  for (const ZooEntry& entry : Zoo()) {
    if (entry.name == name) return entry;
  }
  throw UsageError(UnknownName("network", name, Names()));
}

}  // namespace

const std::vector<ZooEntry>& Zoo() {
  static const std::vector<ZooEntry> zoo{
      {"alexnet", "AlexNet, one-weird-trick variant, 224x224 (convnet-benchmarks; vDNN)",
       BuildAlexNet},
      {"overfeat", "OverFeat, fast model, 231x231 (convnet-benchmarks; vDNN)", BuildOverFeat},
      {"googlenet", "GoogLeNet, no auxiliary classifiers, no LRN (convnet-benchmarks; vDNN)",
       BuildGoogLeNet},
      {"vgg16", "VGG configuration D: 13 convolutions (Simonyan and Zisserman 2015)",
       [] {
         return BuildVgg("vgg16", {2, 2, 3, 3, 3});
       }},
      {"vgg19", "VGG configuration E: 16 convolutions, called VGG-16 by vDNN",
       [] {
         return BuildVgg("vgg19", {2, 2, 4, 4, 4});
       }},
      {"vgg116", "VGG-E with 20 more convolutions per group (vDNN, very deep)",
       [] {
         return BuildVgg("vgg116", {22, 22, 24, 24, 24});
       }},
      {"vgg216", "VGG-E with 40 more convolutions per group (vDNN, very deep)",
       [] {
         return BuildVgg("vgg216", {42, 42, 44, 44, 44});
       }},
      {"vgg316", "VGG-E with 60 more convolutions per group (vDNN, very deep)",
       [] {
         return BuildVgg("vgg316", {62, 62, 64, 64, 64});
       }},
      {"vgg416", "VGG-E with 80 more convolutions per group (vDNN, very deep)",
       [] {
         return BuildVgg("vgg416", {82, 82, 84, 84, 84});
       }},
  };
  return zoo;
}

Network BuildNetwork(std::string_view name) { return Find(name).build(); }

std::string Workload::Name() const { return fmt::format("{}:{}", network, batch); }

Workload ParseWorkload(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    throw UsageError(
        fmt::format("'{}' is not a workload: expected NETWORK:BATCH, for example vgg16:256, or the "
                    "path of a trace file",
                    text));
  }
  Workload workload{std::string(text.substr(0, colon))};
  Find(workload.network);
  const std::string_view batch = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(batch.data(), batch.data() + batch.size(), workload.batch);
  if (error != std::errc() || end != batch.data() + batch.size() || workload.batch < 1 ||
      workload.batch > 65536) {
    throw UsageError(
        fmt::format("'{}': the batch '{}' is not a whole number from 1 to 65536", text, batch));
  }
  return workload;
}

}  // namespace spillway
