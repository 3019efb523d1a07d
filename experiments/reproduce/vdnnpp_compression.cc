#include "experiments/reproduce/vdnnpp_compression.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "experiments/reproduce/vdnnpp_setup.h"
#include "sim/core/report.h"

namespace spillway {
namespace {

using vdnnpp::EagerRun;
using vdnnpp::kLargeGpu;
using vdnnpp::ParsePaperWorkload;
using vdnnpp::Scene;
using vdnnpp::TakeWord;

// Percent of the words that are not zero, by layer: what the authors' stand-alone test fills its
// feature maps with, at random (their public code, compression_test/general_compression). The paper
// prints none.
using LayerDensities = std::map<std::string_view, int>;

// nullptr if the test does not have the network.
const LayerDensities* DocumentedDensities(std::string_view network) {
  static const LayerDensities alexnet{{"conv1", 50}, {"pool1", 80}, {"conv2", 40}, {"pool2", 60},
                                      {"conv3", 70}, {"conv4", 70}, {"conv5", 30}, {"pool5", 60}};
  static const LayerDensities vgg16{
      {"conv1_1", 50}, {"conv1_2", 20}, {"pool1", 30},   {"conv2_1", 20}, {"conv2_2", 10},
      {"pool2", 20},   {"conv3_1", 20}, {"conv3_2", 20}, {"conv3_3", 10}, {"pool3", 20},
      {"conv4_1", 20}, {"conv4_2", 10}, {"conv4_3", 10}, {"pool4", 10},   {"conv5_1", 20},
      {"conv5_2", 20}, {"conv5_3", 10}, {"pool5", 15}};
  return network == "alexnet-plain" ? &alexnet : network == "vgg16" ? &vgg16 : nullptr;
}

std::string_view LayerOf(const Tensor& tensor) {
  return std::string_view(tensor.name).substr(0, tensor.name.find('.'));
}

// The feature maps that all(m) offloads. The image, which it offloads too, has no zeros to speak
// of.
std::vector<const Tensor*> OffloadedByAll(const Scene& scene) {
  const Report report = EagerRun(scene, {"all", false}, "prefetch-first", "none");
  std::vector<const Tensor*> tensors;
  for (const TimelineEntry& entry : report.timeline) {
    const Tensor& tensor = scene.trace.tensor(entry.tensor);
    if (entry.kind == CommandKind::kToHost && tensor.kind == TensorKind::kActivation) {
      tensors.push_back(&tensor);
    }
  }
  return tensors;
}

// What is left of a feature map, as a share (section IV-C): a mask of one bit per word, and what is
// not zero, for which each of eight threads takes eighths of its part. Zeros lie at random: where
// the rest would fill its eighths exactly, every second thread needs one more.
constexpr int kThreads = 8;
constexpr int kFraction = 8;
double CompressedShare(double density) {
  const double blocks = density * kFraction;
  const bool exact = blocks == std::floor(blocks) && blocks > 0 && blocks < kFraction;
  return 1.0 / 32 + (std::ceil(blocks) + (exact ? 0.5 : 0)) / kFraction;
}

using DensityOf = std::function<double(const Tensor&)>;

// The share of the feature maps' bytes that compression saves, in percent. Mask and rounding can
// take more than zeros save.
double Saving(const std::vector<const Tensor*>& tensors, const DensityOf& density) {
  double plain = 0, compressed = 0;
  for (const Tensor* tensor : tensors) {
    plain += tensor->size.mib();
    compressed += tensor->size.mib() * CompressedShare(density(*tensor));
  }
  return 100 * (1 - compressed / plain);
}

// The density of all maps that would explain a saving in percent, to a thousandth; nullopt if none
// does.
std::optional<double> DensityFor(const std::vector<const Tensor*>& tensors, double saving) {
  for (int thousandths = 1000; thousandths >= 0; --thousandths) {
    const double density = thousandths / 1000.0;
    if (Saving(tensors, [&](const Tensor&) { return density; }) >= saving) return density;
  }
  return std::nullopt;
}

// The numbers of a feature map and their units: its density in the authors' test; its compressed
// size over its size, at this density and at 25, 50 and 75 %; the times that eight threads need at
// the rates of the device file.
const std::map<std::string_view, std::string_view>& FigureTenColumns() {
  static const std::map<std::string_view, std::string_view> columns{
      {"size", "MB"},   {"density", "%"}, {"ratio", "x"},     {"ratio25", "x"},
      {"ratio50", "x"}, {"ratio75", "x"}, {"compress", "ms"}, {"decompress", "ms"}};
  return columns;
}

// `layer` is "conv1" for its output.
std::optional<double> FigureTen(const Workload& workload, std::string_view layer,
                                std::string_view column) {
  const Scene scene(workload, kLargeGpu);
  for (const Tensor* tensor : OffloadedByAll(scene)) {
    if (LayerOf(*tensor) != layer) continue;
    const auto time = [&](Bandwidth thread) {
      return TransferTime(tensor->size, {thread.bytes_per_second * kThreads}).milliseconds();
    };
    if (column == "size") return tensor->size.mib();
    if (column == "compress") return time(scene.device.codec.compress);
    if (column == "decompress") return time(scene.device.codec.decompress);
    if (column == "ratio25") return CompressedShare(0.25);
    if (column == "ratio50") return CompressedShare(0.5);
    if (column == "ratio75") return CompressedShare(0.75);
    const LayerDensities* densities = DocumentedDensities(workload.network);
    if (densities == nullptr) return std::nullopt;
    const int percent = densities->at(layer);
    return column == "density" ? percent : CompressedShare(percent / 100.0);
  }
  return std::nullopt;
}

std::optional<double> ParseShare(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 && value <= 100 ? std::optional(value) : std::nullopt;
}

std::optional<ComputableItem> ParseFigureTen(const Workload& workload, std::string_view rest) {
  const std::string layer(TakeWord(rest));
  const std::string column(rest);
  const auto unit = FigureTenColumns().find(column);
  if (unit == FigureTenColumns().end()) return std::nullopt;
  ComputableItem item;
  item.unit = unit->second;
  if (column != "size") item.evidence = "x";
  item.compute = [=] { return FigureTen(workload, layer, column); };
  return item;
}

// "saving NET(BATCH) %", "saving NET(BATCH) at DENSITY %" and "density NET(BATCH) at PERCENT".
std::optional<ComputableItem> ParseSaving(bool saving, const Workload& workload,
                                          std::string_view rest) {
  ComputableItem item;
  item.unit = saving ? "%" : "share";
  item.evidence = "x";
  item.round_down = saving;
  if (saving && rest == "%") {
    const LayerDensities* densities = DocumentedDensities(workload.network);
    if (densities == nullptr) return std::nullopt;
    item.compute = [=] {
      const Scene scene(workload, kLargeGpu);
      return Saving(OffloadedByAll(scene),
                    [&](const Tensor& tensor) { return densities->at(LayerOf(tensor)) / 100.0; });
    };
    return item;
  }
  if (TakeWord(rest) != "at") return std::nullopt;
  const auto value = ParseShare(TakeWord(rest));
  if (!value || rest != (saving ? "%" : "") || (saving && *value > 1)) return std::nullopt;
  item.compute = [=, value = *value]() -> std::optional<double> {
    const Scene scene(workload, kLargeGpu);
    const auto tensors = OffloadedByAll(scene);
    if (!saving) return DensityFor(tensors, value);
    return Saving(tensors, [=](const Tensor&) { return value; });
  };
  return item;
}

}  // namespace

std::optional<ComputableItem> ParseVdnnppCompressionItem(std::string_view text) {
  const std::string_view word = TakeWord(text);
  if (word != "Fig10" && word != "saving" && word != "density") return std::nullopt;
  const auto workload = ParsePaperWorkload(TakeWord(text));
  if (!workload) return std::nullopt;
  auto item = word == "Fig10" ? ParseFigureTen(*workload, text)
                              : ParseSaving(word == "saving", *workload, text);
  if (item) item->workload = workload->Name();
  return item;
}

std::vector<std::string> VdnnppCompressionItems() {
  std::vector<std::string> items;
  const Scene scene(*ParsePaperWorkload("AlexNet(128)"), kLargeGpu);
  for (const Tensor* tensor : OffloadedByAll(scene)) {
    for (const auto& [column, unit] : FigureTenColumns()) {
      items.push_back(fmt::format("Fig10 AlexNet(128) {} {}", LayerOf(*tensor), column));
    }
  }
  items.push_back("saving AlexNet(128) %");
  items.push_back("density AlexNet(128) at 36");
  items.push_back("saving VGG-16(16) %");
  items.push_back("density VGG-16(16) at 67");
  return items;
}

}  // namespace spillway
