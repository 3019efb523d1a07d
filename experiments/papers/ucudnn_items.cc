// u-cuDNN (Oyama et al., CLUSTER 2018): workspaces of its text, and the times of its figures by the
// analytic models of its GPUs. Only convolutions count, each with its kernel's own time.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/papers/paper.h"
#include "policies/kernels/micro_batch.h"
#include "policies/kernels/workspace_division.h"
#include "sim/cost/conv_workspace.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr const char* kGpu = "p100";

// The preset also computes the gradient of the image: the paper counts fifteen kernels for five
// convolutions (section IV-D).
constexpr const char* kPreset = "superneurons";

Bytes MebibytesOf(double number) {
  return Bytes(static_cast<int64_t>(std::llround(number * (1 << 20))));
}

// All kernels of a workload's convolutions, each with the front of its desirable divisions.
class Convolutions {
 public:
  Convolutions(const PaperRow& row, MicroBatches batches)
      : inputs_(row.asked), divisions_(batches) {
    const KernelFronts network = FrontsOf(*inputs_.trace(), *inputs_.cost(), divisions_);
    fronts = network.fronts;
    for (const auto& [id, slot] : network.kernels) {
      const Op& op = inputs_.trace()->op(id);
      names.push_back(op.name.substr(0, op.name.rfind('.')) + "." + op.slots[slot].name);
    }
  }

  // Returns the time of all kernels with at most `limit` of workspace for each.
  Duration TimeWithin(Bytes limit) const {
    Duration time;
    for (const Front front : fronts) time += Within(front, limit).time;
    return time;
  }

  // Returns the fastest division within the limit, or the one with the least workspace if none
  // fits.
  static const Division& Within(Front front, Bytes limit) {
    const Division* division = FastestWithin(front, limit);
    return division == nullptr ? front.front() : *division;
  }

  // Returns the front of a kernel, "conv2.fwd"; nullopt if there is none.
  std::optional<Front> Find(const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) return std::nullopt;
    return fronts[static_cast<size_t>(found - names.begin())];
  }

  std::vector<Front> fronts;
  std::vector<std::string> names;  // the kernel's name of each front

 private:
  const Inputs inputs_;
  DivisionFronts divisions_;
};

// --- Numbers of the text ------------------------------------------------------------------------

double TotalWorkspace(const PaperRow& row) {
  const Convolutions convolutions(row, MicroBatches::kUndivided);
  return row.number * static_cast<double>(convolutions.fronts.size());
}

// Returns the MiB of workspace of FFT forward on a batch of `row.number`.
Computed FftWorkspace(const PaperRow& row) {
  Case asked = row.asked;
  asked.workload = Workload{row.workload.network, static_cast<int64_t>(row.number)}.Name();
  const Trace trace = LoadTrace(asked);
  for (const Op& op : trace.ops) {
    if (op.name != row.layer + ".fwd" || op.type != OpType::kConv2d) continue;
    const auto workspace = ConvWorkspace(op, "fwd", "fft", op.batch);
    if (workspace) return workspace->mib();
  }
  return std::nullopt;
}

double CandidateBatches(const PaperRow& row) {
  std::vector<int64_t> available(static_cast<size_t>(row.number));
  for (size_t i = 0; i < available.size(); ++i) available[i] = static_cast<int64_t>(i) + 1;
  return static_cast<double>(ChooseBatches(MicroBatches::kPowerOfTwo, available).size());
}

bool IsBatch(const PaperRow& row) {
  return row.number >= 1 && row.number <= 4096 && row.number == std::floor(row.number);
}

// --- Figures ------------------------------------------------------------------------------------

// Returns the time of the fastest undivided kernel, or of the fastest kernel that needs at least
// one byte less of workspace.
Computed Undivided(const PaperRow& row, bool byte_less) {
  const Convolutions convolutions(row, MicroBatches::kUndivided);
  const auto front = convolutions.Find(row.layer + ".fwd");
  if (!front) return std::nullopt;
  const size_t slower = byte_less && front->size() > 1 ? 2 : 1;
  return (*front)[front->size() - slower].time.milliseconds();
}

Computed Divided(const PaperRow& row, MicroBatches batches, Bytes limit) {
  const Convolutions convolutions(row, batches);
  const auto front = convolutions.Find(row.layer + ".fwd");
  if (!front) return std::nullopt;
  return Convolutions::Within(*front, limit).time.milliseconds();
}

// Returns the time of undivided convolutions over the time of divided ones in as much workspace.
double Speedup(const PaperRow& row, MicroBatches batches) {
  const Bytes limit = MebibytesOf(row.number);
  const Convolutions undivided(row, MicroBatches::kUndivided);
  const Convolutions divided(row, batches);
  return undivided.TimeWithin(limit).seconds() / divided.TimeWithin(limit).seconds();
}

// Returns the time of convolutions if each kernel has an equal share of `row.number` MiB.
double EqualShares(const PaperRow& row, MicroBatches batches) {
  const Convolutions convolutions(row, batches);
  const auto kernels = static_cast<double>(convolutions.fronts.size());
  return convolutions.TimeWithin(MebibytesOf(row.number / kernels)).milliseconds();
}

// Returns the time of convolutions if segments of `row.number` MiB are divided among the kernels.
Computed Segments(const PaperRow& row) {
  const Convolutions convolutions(row, MicroBatches::kPowerOfTwo);
  const SegmentChoice choice = DivideByIlp(convolutions.fronts, MebibytesOf(row.number));
  if (!choice) return std::nullopt;
  Duration time;
  for (size_t k = 0; k < choice->size(); ++k) time += convolutions.fronts[k][(*choice)[k]].time;
  return time.milliseconds();
}

// Returns the MiB of the segment of the kernel `row.layer`, "conv2.bwd_data".
Computed Segment(const PaperRow& row) {
  const Convolutions convolutions(row, MicroBatches::kPowerOfTwo);
  const SegmentChoice choice = DivideByIlp(convolutions.fronts, MebibytesOf(row.number));
  for (size_t k = 0; choice && k < choice->size(); ++k) {
    if (convolutions.names[k] != row.layer) continue;
    return convolutions.fronts[k][(*choice)[k]].workspace.mib();
  }
  return std::nullopt;
}

// Returns the MiB of a layer's inputs, outputs, parameters and workspace in forward, if its
// workspace may take `limit`.
Computed LayerMemory(const PaperRow& row, MicroBatches batches, Bytes limit) {
  const Convolutions convolutions(row, batches);
  const auto front = convolutions.Find(row.layer + ".fwd");
  const Bytes workspace = front ? Convolutions::Within(*front, limit).workspace : Bytes(0);
  const Trace trace = LoadTrace(row.asked);
  for (const Op& op : trace.ops) {
    if (op.name != row.layer + ".fwd") continue;
    Bytes size = workspace;
    for (const auto& operands : {op.inputs, op.outputs}) {
      for (const TensorId id : operands) size += trace.tensor(id).size;
    }
    return size.mib();
  }
  return std::nullopt;
}

// Returns the convolutions and linear layers, of identical ones only the first (Fig. 12).
std::vector<std::string> UniqueLayers(const Workload& workload) {
  const Trace trace = LoadTrace({.workload = workload.Name(), .preset = kPreset});
  std::vector<std::string> layers;
  std::set<std::string> seen;
  for (const Op& op : trace.ops) {
    const bool weighted = op.type == OpType::kConv2d || op.type == OpType::kLinear;
    if (op.phase != Phase::kForward || !weighted) continue;
    if (!seen.insert(op.slots[0].signature).second) continue;
    layers.push_back(op.name.substr(0, op.name.rfind('.')));
  }
  return layers;
}

double Variables(const PaperRow& row) {
  const Convolutions convolutions(row, MicroBatches::kPowerOfTwo);
  size_t variables = 0;
  for (const Front front : convolutions.fronts) variables += front.size();
  return static_cast<double>(variables);
}

PaperNames Names() {
  return {.networks = {{"AlexNet", "alexnet-caffe", 256},
                       {"AlexNet (single column)", "alexnet", 256},
                       {"ResNet-18", "resnet18", 128},
                       {"ResNet-50", "resnet50", 32}},
          .ignored = "- "};
}

}  // namespace

std::vector<PaperTable> UcudnnTables(const PaperValues&) {
  const Workload alexnet{"alexnet-caffe", 256}, single{"alexnet", 256}, resnet{"resnet50", 32};
  const std::vector<std::string> layers{"conv1", "conv2", "conv3", "conv4", "conv5"};
  std::vector<PaperTable> tables;
  const auto add = [&](std::string name, std::vector<PaperRow> rows,
                       std::vector<PaperColumn> columns, const char* device = kGpu) {
    tables.push_back({std::move(name), Names(), std::move(rows), std::move(columns),
                      PaperRequest::kPaperName, "", device, kPreset});
  };
  // A column of a figure, whose numbers the paper plots without printing them.
  const auto plotted = [](std::string pattern, std::string unit, auto compute) {
    return PaperColumn{std::move(pattern), std::move(unit), compute, false, "x"};
  };

  const PaperColumn total{"{workload} total WS at {number} MiB/kernel", "MiB", TotalWorkspace};
  add("Text", Rows({alexnet}, {8, 64, 512}), {total});
  add("Text", Rows({resnet}, {8, 16, 32}), {total});
  const auto of_batch = [&](std::vector<PaperRow> rows, const char* pattern, const char* unit,
                            auto compute) {
    add("Text", std::move(rows), {{pattern, unit, compute, false, "", IsBatch}}, "");
  };
  of_batch(Rows({alexnet}, {256}, {"conv2"}), "{workload} {layer} FFT WS, batch {number} MiB",
           "MiB", FftWorkspace);
  of_batch(Rows({alexnet}, {32}, {"conv2"}), "{workload} {layer} FFT WS, micro-batch {number} MiB",
           "MiB", FftWorkspace);
  of_batch(Rows({{}}, {256}), "powerOfTwo batch sizes for B={number}", "count", CandidateBatches);

  add("Fig1", Rows({single}, {0}, layers),
      {plotted("Fig1 {workload} {layer} best", "ms",
               [](const PaperRow& row) { return Undivided(row, false); }),
       plotted("Fig1 {workload} {layer} -1 byte", "ms",
               [](const PaperRow& row) { return Undivided(row, true); })});
  // All points share one front, which the first point computes.
  struct Known {
    std::once_flag once;
    std::optional<Convolutions> convolutions;
  };
  const auto front = [known = std::make_shared<Known>()](const PaperRow& row) -> Computed {
    std::call_once(known->once, [&] { known->convolutions.emplace(row, MicroBatches::kAll); });
    const auto found = known->convolutions->Find(row.layer + ".fwd");
    if (!found) return std::nullopt;
    return Convolutions::Within(*found, MebibytesOf(row.number)).time.milliseconds();
  };
  std::vector<double> limits(61);
  for (size_t i = 0; i < limits.size(); ++i) limits[i] = static_cast<double>(2 * i);
  add("Fig8", Rows({alexnet}, limits, {"conv2"}),
      {plotted("Fig8 {workload} {layer} within {number}MiB", "ms", front)});
  std::vector<PaperColumn> options, speedups;
  for (const auto& [option, batches] :
       {std::pair{"undivided", MicroBatches::kUndivided},
        std::pair{"powerOfTwo", MicroBatches::kPowerOfTwo}, std::pair{"all", MicroBatches::kAll}}) {
    options.push_back(
        plotted(fmt::format("Fig9 {{workload}} {{layer}} {} in {{number}}MiB", option), "ms",
                [batches = batches](const PaperRow& row) {
                  return Divided(row, batches, MebibytesOf(row.number));
                }));
    if (batches == MicroBatches::kUndivided) continue;
    speedups.push_back(
        plotted(fmt::format("Fig10 {{workload}} {{number}}MiB {{device}} {} speedup", option), "x",
                OfRow(Speedup, batches)));
  }
  add("Fig9", Rows({alexnet}, {64}, {"conv2"}), options);
  add("Fig10", Rows({alexnet}, {8, 64, 512}), speedups, "k80");
  add("Fig10", Rows({alexnet}, {8, 64, 512}), speedups, "p100");
  add("Fig11", Rows({alexnet, {"resnet50", 64}, {"densenet40", 256}}, {8, 64, 512}),
      {plotted("Fig11 {workload} {number}MiB powerOfTwo speedup", "x",
               OfRow(Speedup, MicroBatches::kPowerOfTwo))});
  add("Fig10", Rows({{"alexnet-caffe", 1024}}, {8, 64, 512}),
      {plotted("Fig10 {workload} {number}MiB {device} powerOfTwo speedup", "x",
               OfRow(Speedup, MicroBatches::kPowerOfTwo))},
      "v100");
  for (const Workload& workload : {alexnet, Workload{"resnet18", 128}}) {
    add("Fig12", Rows({workload}, {0}, UniqueLayers(workload)),
        {plotted("Fig12 {workload} {layer} undivided within 512MiB", "MiB",
                 [](const PaperRow& row) {
                   return LayerMemory(row, MicroBatches::kUndivided, Bytes::MiB(512));
                 }),
         plotted("Fig12 {workload} {layer} divided within 64MiB", "MiB", [](const PaperRow& row) {
           return LayerMemory(row, MicroBatches::kPowerOfTwo, Bytes::MiB(64));
         })});
  }
  const std::vector<PaperColumn> totals{
      plotted("Fig13 {workload} {number}MiB undivided", "ms",
              [](const PaperRow& row) { return EqualShares(row, MicroBatches::kUndivided); }),
      plotted("Fig13 {workload} {number}MiB WR", "ms",
              [](const PaperRow& row) { return EqualShares(row, MicroBatches::kPowerOfTwo); }),
      plotted("Fig13 {workload} {number}MiB WD", "ms", Segments),
      plotted("Fig13 {workload} {number}MiB variables", "count", Variables)};
  add("Fig13", Rows({alexnet}, {120, 960, 7680}), totals);
  add("Fig13", Rows({resnet}, {1272, 2544, 5088}), totals);
  std::vector<std::string> kernels;
  for (const std::string& layer : layers) {
    for (const char* slot : {".fwd", ".bwd_data", ".bwd_filter"}) kernels.push_back(layer + slot);
  }
  add("Fig14", Rows({alexnet}, {120}, kernels),
      {plotted("Fig14 {workload} {number}MiB {layer} segment", "MiB", Segment)});
  return tables;
}

}  // namespace spillway::lab
