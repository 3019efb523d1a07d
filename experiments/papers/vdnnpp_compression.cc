// Compression in vDNN++ (Shriram et al., IPDPS 2019, sections IV-C and V-C).

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>

#include "experiments/papers/vdnnpp_setup.h"

namespace spillway::lab::vdnnpp {
namespace {

// The percentage of words that are not zero, by layer. With these densities the authors'
// stand-alone test fills its feature maps at random (compression_test/general_compression of their
// public code). The paper does not print them.
using LayerDensities = std::map<std::string_view, int>;

// Returns the densities of a network; nullptr if the authors' test lacks it.
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

// Returns the feature maps that all(m) offloads. The image, which all(m) also offloads, has few
// zeros and is left out.
std::vector<const Tensor*> OffloadedByAll(const Inputs& inputs) {
  const Report report = EagerRun(inputs, {"all", false});
  std::vector<const Tensor*> tensors;
  for (const TimelineEntry& entry : report.timeline) {
    const Tensor& tensor = inputs.trace()->tensor(entry.tensor);
    if (entry.kind == CommandKind::kToHost && tensor.kind == TensorKind::kActivation) {
      tensors.push_back(&tensor);
    }
  }
  return tensors;
}

// Returns the compressed size of a feature map over its size (section IV-C). The compressed map is
// a mask of one bit per word and the words that are not zero, for which each of eight threads takes
// eighths of its part. Zeros lie at random: if the words would fill the eighths exactly, every
// second thread needs one more eighth.
constexpr int kThreads = 8;
constexpr int kFraction = 8;
double CompressedShare(double density) {
  const double blocks = density * kFraction;
  const bool exact = blocks == std::floor(blocks) && blocks > 0 && blocks < kFraction;
  return 1.0 / 32 + (std::ceil(blocks) + (exact ? 0.5 : 0)) / kFraction;
}

// Returns the percentage of the feature maps' bytes that compression saves. It is negative if mask
// and rounding take more than zeros save.
double Saving(const std::vector<const Tensor*>& tensors,
              const std::function<double(const Tensor&)>& density) {
  double plain = 0, compressed = 0;
  for (const Tensor* tensor : tensors) {
    plain += tensor->size.mib();
    compressed += tensor->size.mib() * CompressedShare(density(*tensor));
  }
  return 100 * (1 - compressed / plain);
}

// Returns the largest density, in thousandths, at which all maps together save `saving` percent;
// nullopt if no density saves as much.
Computed DensityFor(const std::vector<const Tensor*>& tensors, double saving) {
  for (int thousandths = 1000; thousandths >= 0; --thousandths) {
    const double density = thousandths / 1000.0;
    if (Saving(tensors, [&](const Tensor&) { return density; }) >= saving) return density;
  }
  return std::nullopt;
}

// Returns the milliseconds of eight threads, each at the rate that the device file gives for one.
double Time(Bytes size, Bandwidth thread) {
  return TransferTime(size, {thread.bytes_per_second * kThreads}).milliseconds();
}

// Returns the compression of each layer's output that is offloaded. `density` is taken from the
// authors' test, if the test has the network. `ratio` is the compressed size over the size at this
// density, and `ratio25`, `ratio50` and `ratio75` are this ratio at 25, 50 and 75 %.
PaperTable FigureTen() {
  PaperTable table{"Fig10",
                   Names(),
                   Rows({{"alexnet-plain", 128}}, {0},
                        {"conv1", "pool1", "conv2", "pool2", "conv3", "conv4", "conv5"}),
                   {}};
  const auto add = [&](const std::string& name, const char* unit, auto compute) {
    const auto of_layer = [=](const PaperRow& row) -> Computed {
      const Inputs inputs(row.asked);
      const LayerDensities* densities = DocumentedDensities(row.workload.network);
      for (const Tensor* tensor : OffloadedByAll(inputs)) {
        if (LayerOf(*tensor) != row.layer) continue;
        const auto percent = densities ? std::optional(densities->at(row.layer)) : std::nullopt;
        return compute(inputs.device().codec, tensor->size, percent);
      }
      return std::nullopt;
    };
    table.columns.push_back(
        {"Fig10 {workload} {layer} " + name, unit, of_layer, false, name == "size" ? "" : "x"});
  };
  add("compress", "ms", [](auto& codec, Bytes size, auto) { return Time(size, codec.compress); });
  add("decompress", "ms",
      [](auto& codec, Bytes size, auto) { return Time(size, codec.decompress); });
  add("density", "%", [](auto&, Bytes, std::optional<int> percent) { return Computed(percent); });
  add("ratio", "x", [](auto&, Bytes, std::optional<int> percent) {
    return percent ? Computed(CompressedShare(*percent / 100.0)) : std::nullopt;
  });
  for (const int at : {25, 50, 75}) {
    add(fmt::format("ratio{}", at), "x",
        [=](auto&, Bytes, auto) { return CompressedShare(at / 100.0); });
  }
  add("size", "MB", [](auto&, Bytes size, auto) { return size.mib(); });
  return table;
}

// Returns the saving of all feature maps at the densities of the authors' test.
Computed SavingInTest(const PaperRow& row) {
  const Inputs inputs(row.asked);
  const LayerDensities& densities = *DocumentedDensities(row.workload.network);
  return Saving(OffloadedByAll(inputs),
                [&](const Tensor& tensor) { return densities.at(LayerOf(tensor)) / 100.0; });
}

}  // namespace

std::array<double, 2> CompressionCpu(const Inputs& inputs) {
  const Report report = ReportOf(inputs, Mode{"all", false}.Vdnnpp());
  Duration forward;
  for (const TimelineEntry& entry : report.timeline) {
    const bool runs = entry.kind == CommandKind::kKernel;
    if (runs && inputs.trace()->op(entry.op).phase == Phase::kForward) {
      forward = std::max(forward, entry.interval.end);
    }
  }
  Bytes size;
  for (const Tensor* tensor : OffloadedByAll(inputs)) size += tensor->size;
  const auto percent = [&](Bandwidth thread, Duration phase) {
    return 100 * TransferTime(size, thread).seconds() / phase.seconds();
  };
  return {percent(inputs.device().codec.compress, forward),
          percent(inputs.device().codec.decompress, report.metrics.iteration - forward)};
}

std::vector<PaperTable> CompressionTables(const PaperValues& printed) {
  PaperTable savings{"Fig10", Names(), {{{"alexnet-plain", 128}}, {{"vgg16", 16}}}, {}};
  for (PaperRow& row : savings.rows) {
    const std::string saving = fmt::format("saving {} %", Names().Write(row.workload));
    row.number = PrintedNumber(printed, "vdnnpp", saving).value_or(0);
  }
  savings.columns = {
      {"saving {workload} %", "%", SavingInTest, true, "x",
       [](const PaperRow& row) { return DocumentedDensities(row.workload.network) != nullptr; }},
      // The density that explains a saving.
      {"density {workload} at {number}", "share",
       [](const PaperRow& row) {
         return DensityFor(OffloadedByAll(Inputs(row.asked)), row.number);
       },
       false, "x", [](const PaperRow& row) { return row.number >= 0 && row.number <= 100; }}};
  // The saving if every map has the density `number`.
  PaperTable uniform{"Fig10", Names(), {}, {}};
  uniform.columns = {{"saving {workload} at {number} %", "%",
                      [](const PaperRow& row) {
                        return Saving(OffloadedByAll(Inputs(row.asked)),
                                      [&](const Tensor&) { return row.number; });
                      },
                      true, "x",
                      [](const PaperRow& row) { return row.number >= 0 && row.number <= 1; }}};
  std::vector<PaperTable> tables{FigureTen(), savings, uniform};
  tables[0].device = kLargeGpu;
  return tables;
}

}  // namespace spillway::lab::vdnnpp
