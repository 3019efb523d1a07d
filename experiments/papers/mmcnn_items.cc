// mmCNN (Li et al. 2020): Tables 2 to 6, which count memory for inference of one image, and Fig. 9,
// the time of its policy on the model of its GPU.
//
// The paper's feature maps have the size that convolution arithmetic gives without rounding (VGG-S
// has maps of 109.5 x 109.5), and its fully connected layers are convolutions over the whole map.
// Weights and maps are counted in MiB; workspaces are not counted.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/papers/paper.h"
#include "policies/mmcnn/slice_schedule.h"
#include "traces/base/error.h"
#include "traces/base/units.h"
#include "traces/lowering/lowering.h"

namespace spillway::lab {
namespace {

constexpr double kElement = 4;  // fp32

// The rules by which the paper's tables count a network.
struct TableCounting {
  int64_t classes = 0;  // outputs of the last layer; 0: the network's own
  // The weights of the second convolution are counted as if it read the image: the paper's Table 6
  // does so with conv1_2 of VGG, which has 12.26 MB there instead of 12.39.
  bool second_reads_image = false;
};

// A chain of layers with the real-valued sizes of the paper.
class Chain {
 public:
  // Begins with an image of `side` x `side`.
  Chain(double side, double channels) : side_(side), channels_(channels), image_(channels) {
    layers_.push_back({Map(), 0});
    outputs_.push_back(Map());
  }

  void Window(double kernel, double stride, double pad) {
    side_ = (side_ + 2 * pad - kernel) / stride + 1;
  }
  void InPlace() { Add(Map(), Map(), 0); }
  void Pool(double kernel, double stride, double pad) {
    const double before = Map();
    Window(kernel, stride, pad);
    Add(before + Map(), Map(), 0);
  }
  void Normalize() { Add(2 * Map(), Map(), 0); }
  void Weighted(double kernel, double stride, double pad, double filters, double groups,
                const TableCounting& counting) {
    const double before = Map();
    const bool slip = counting.second_reads_image && weighted_++ == 1;
    const double depth = slip ? image_ : channels_ / groups;
    Window(kernel, stride, pad);
    channels_ = filters;
    Add(before + Map(), Map(), kElement * filters * (kernel * kernel * depth + 1));
  }

  double channels() const { return channels_; }
  const std::vector<MmcnnLayer>& layers() const { return layers_; }
  double outputs() const { return std::accumulate(outputs_.begin(), outputs_.end(), 0.0); }
  double weights() const {
    return std::accumulate(layers_.begin(), layers_.end(), 0.0,
                           [](double sum, const MmcnnLayer& l) { return sum + l.weights; });
  }

 private:
  double Map() const { return kElement * channels_ * side_ * side_; }
  void Add(double maps, double output, double weights) {
    layers_.push_back({maps, weights});
    outputs_.push_back(output);
  }

  double side_, channels_;
  const double image_;
  int weighted_ = 0;
  std::vector<MmcnnLayer> layers_;
  std::vector<double> outputs_;  // bytes of each layer's output
};

// Returns the network as a chain; nullopt if it branches or has other layers than the paper's.
std::optional<Chain> ChainOf(const Workload& workload, const TableCounting& counting) {
  const Trace trace = LowerNetwork(BuildNetwork(workload.network), {1, "torch", false});
  const auto number = [](const Op& op, std::string_view name) {
    return static_cast<double>(op.IntAttribute(name));
  };
  std::optional<Chain> chain;
  size_t last_linear = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (trace.ops[i].type == OpType::kLinear) last_linear = i;
  }
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (!chain) {
      if (op.type != OpType::kConv2d) return std::nullopt;
      chain.emplace(number(op, "in_height"), number(op, "in_channels"));
    }
    switch (op.type) {
      case OpType::kConv2d:
        chain->Weighted(number(op, "kernel_h"), number(op, "stride_h"), number(op, "pad_h"),
                        number(op, "out_channels"), number(op, "groups"), counting);
        break;
      case OpType::kLinear: {
        const double classes = static_cast<double>(counting.classes);
        const bool last = i == last_linear && counting.classes > 0;
        const double kernel = std::sqrt(number(op, "in_features") / chain->channels());
        chain->Weighted(kernel, 1, 0, last ? classes : number(op, "out_features"), 1, counting);
        break;
      }
      case OpType::kMaxPool2d:
      case OpType::kAvgPool2d:
        chain->Pool(number(op, "kernel_h"), number(op, "stride_h"), number(op, "pad_h"));
        break;
      case OpType::kRelu:
        chain->InPlace();
        break;
      case OpType::kLrn:
        chain->Normalize();
        break;
      case OpType::kDropout:
      case OpType::kSoftmaxLoss:
        break;  // the tables have no such rows
      default:
        return std::nullopt;
    }
  }
  return chain;
}

double Mebibytes(double bytes) { return bytes / static_cast<double>(Bytes::MiB(1).count()); }

// Returns the index of the row's layer. Items count layers from 1; 0 gives the largest index.
size_t LayerOf(const PaperRow& row) { return static_cast<size_t>(row.step) - 1; }

// Returns a column's function that calls `part(step)` with the schedule's step of the row's layer
// within `row.number` MB. It returns nullopt if there is no such layer.
template <typename Part>
auto OfStep(TableCounting counting, Part part) {
  return [=](const PaperRow& row) -> Computed {
    const auto chain = ChainOf(row.workload, counting);
    if (!chain || row.number <= 0 || LayerOf(row) >= chain->layers().size()) return std::nullopt;
    const double limit = row.number * static_cast<double>(Bytes::MiB(1).count());
    return part(ScheduleMmcnn(chain->layers(), limit)[LayerOf(row)]);
  };
}

// Returns "normal" of Table 2: all weights and twice all maps, as Caffe holds them with room for
// gradients. For AlexNet it is the weights alone, as the paper prints it.
Computed Normal(const PaperRow& row) {
  const auto chain = ChainOf(row.workload, {});
  if (!chain) return std::nullopt;
  const bool alone = row.workload.network.starts_with("alexnet");
  return Mebibytes(chain->weights() + (alone ? 0 : 2 * chain->outputs()));
}

// Returns "vDNN" of Table 2: the largest weights of a layer.
Computed LargestWeights(const PaperRow& row) {
  const auto chain = ChainOf(row.workload, {});
  if (!chain) return std::nullopt;
  double largest = 0;
  for (const MmcnnLayer& layer : chain->layers()) largest = std::max(largest, layer.weights);
  return Mebibytes(largest);
}

Computed WeightsOfLayer(const PaperRow& row) {
  const auto chain = ChainOf(row.workload, {});
  if (!chain || LayerOf(row) >= chain->layers().size()) return std::nullopt;
  return Mebibytes(chain->layers()[LayerOf(row)].weights);
}

// Returns the report of the policy within `row.number` MB.
Report RunWithin(const PaperRow& row) {
  Case asked = row.asked;
  asked.training = false;
  const auto limit =
      Bytes(static_cast<int64_t>(row.number * static_cast<double>(Bytes::MiB(1).count())));
  return ReportOf(Inputs(asked), fmt::format("mmcnn:limit={}B", limit.count()));
}

Computed Milliseconds(const PaperRow& row) {
  return RunWithin(row).metrics.iteration.milliseconds();
}

// Returns the number of copies between host and device.
Computed Transfers(const PaperRow& row) {
  const Report report = RunWithin(row);
  return static_cast<double>(std::ranges::count_if(report.timeline, [](const TimelineEntry& entry) {
    return entry.kind != CommandKind::kKernel;
  }));
}

constexpr double kLeastLimit = 5;  // the paper's smallest limit, in MB

// Returns the saved memory in per cent. The paper prints one decimal, rounded up for all networks.
Computed Saved(const PaperRow& row) {
  const auto normal = Normal(row);
  if (!normal) return std::nullopt;
  return std::ceil(1000 * (1 - kLeastLimit / *normal)) / 10;
}

PaperNames Names() {
  return {
      .networks = {{"AlexNet", "alexnet-caffe", 1}, {"VGG-S", "vgg-s", 1}, {"VGG-D19", "vgg19", 1}},
      .batch = 1};
}

// Returns a row for each limit in MB and each layer of a network.
std::vector<PaperRow> LayersOf(const Workload& workload, int64_t layers,
                               const std::vector<double>& limits = {200, 100, 50, 10, 5}) {
  std::vector<PaperRow> rows;
  for (const double limit : limits) {
    for (int64_t layer = 1; layer <= layers; ++layer) {
      rows.push_back({.workload = workload, .number = limit, .step = layer});
    }
  }
  return rows;
}

}  // namespace

std::vector<PaperTable> MmcnnTables(const PaperValues&) {
  const Workload alexnet{"alexnet-caffe", 1}, vgg_s{"vgg-s", 1}, vgg19{"vgg19", 1};
  std::vector<PaperTable> tables;
  const auto add = [&](std::string name, std::vector<PaperRow> rows,
                       std::vector<PaperColumn> columns) {
    tables.push_back(
        {std::move(name), Names(), std::move(rows), std::move(columns), PaperRequest::kPaperName});
  };
  add("Tab2", Rows({alexnet, vgg_s, vgg19}),
      {{"Tab2 normal {workload} MB", "MB", Normal},
       {"Tab2 vDNN {workload} MB", "MB", LargestWeights},
       {"Tab2 save % {workload}", "%", Saved}});

  // In these tables AlexNet has the ten classes of CIFAR-10 and the other networks have a thousand.
  constexpr TableCounting kTen{.classes = 10}, kVgg{.second_reads_image = true};
  const auto memory = [](const MmcnnStep& step) { return Mebibytes(step.memory); };
  const auto table = [&](const std::string& name, const Workload& workload, int64_t layers,
                         const TableCounting& counting) {
    add(name, LayersOf(workload, layers),
        {{name + " {workload} layer {step} @{number} MB", "MB", OfStep(counting, memory)}});
  };
  const auto parts = [](const MmcnnStep& step) { return static_cast<double>(step.parts); };
  const auto prefetched = [](const MmcnnStep& step) {
    return static_cast<double>(step.prefetched);
  };
  const auto schedule = [&](const std::string& name, const Workload& workload, int64_t layers,
                            const TableCounting& counting) {
    const std::string item = name + " {workload} layer {step} @{number} MB ";
    add(name, LayersOf(workload, layers),
        {{item + "sn", "count", OfStep(counting, parts)},
         {item + "cn", "count", OfStep(counting, prefetched)}});
  };
  // Fig. 6: weights alone, layer by layer.
  for (const auto& [workload, layers] : {std::pair(alexnet, 21), {vgg_s, 20}, {vgg19, 43}}) {
    add("Fig6", LayersOf(workload, layers, {0}),
        {{"Fig6 {workload} layer {step} weights", "MB", WeightsOfLayer}});
  }
  add("Fig9", Rows({alexnet, vgg_s, vgg19}, {200, 100, 50, 20, 10, 5}),
      {{"Fig9 {workload} @{number} MB ms", "ms", Milliseconds},
       {"Fig9 {workload} @{number} MB transfers", "count", Transfers}});
  tables.back().device = "titan_x_maxwell";
  tables.back().preset = "torch";
  schedule("Tab3", vgg19, 43, kVgg);
  schedule("Fig7", alexnet, 21, kTen);
  schedule("Fig8", vgg_s, 20, {});
  table("Tab4", alexnet, 21, kTen);
  table("Tab5", vgg_s, 20, {});
  table("Tab6", vgg19, 43, kVgg);
  return tables;
}

}  // namespace spillway::lab
