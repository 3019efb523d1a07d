// The tables of vDNN++ (Shriram et al., IPDPS 2019).
//
// Tables II and V and Fig. 5 count the requests of a run that releases when vDNN does
// (`release=eager`), and memory that no trace holds, by the rules of
// experiments/papers/counting.md. The GPUs' models give the times.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "experiments/papers/vdnnpp_setup.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/pool_search.h"
#include "experiments/run/prepare.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "sim/cost/roofline.h"
#include "traces/base/error.h"
#include "traces/lowering/graph.h"
#include "traces/lowering/lowering.h"

namespace spillway::lab {
namespace {

using namespace vdnnpp;

constexpr std::array kModes{Mode{"dyn"},        Mode{"conv"},  Mode{"conv", false}, Mode{"all"},
                            Mode{"all", false}, Mode{"aconv"}, Mode{"aconv", false}};
constexpr std::array kOrders{"prefetch-first", "derivative-first"};

// --- Requests -----------------------------------------------------------------------------------

// Returns the memory for weights, which lie outside the pool. Each is an allocation of the driver.
// On the 1080 Ti the driver gives large allocations whole pages of 2 MiB and packs small ones. On
// the GTX 970 it packs all. The context adds one page.
Bytes WeightsFootprint(const Trace& trace, std::string_view device) {
  const Bytes page = Bytes::MiB(2);
  Bytes large, small;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind != TensorKind::kParameter) continue;
    const bool packed = device == kSmallGpu || tensor.size < Bytes::MiB(1);
    (packed ? small : large) += packed ? tensor.size : RoundUp(tensor.size, page);
  }
  const Bytes footprint = large + RoundUp(small, page) + page;
  // 0.12 MiB of VGG-16 are unexplained; without them three of its (m) cells would be one less.
  const bool unexplained = trace.network == "vgg16" && device == kLargeGpu;
  return unexplained ? footprint + Bytes::KiB(123) : footprint;
}

// Returns, for each tensor, whether its block lies in the paper's pool. Blocks of weights, labels
// and the loss do not.
std::vector<bool> InPool(const Trace& trace) {
  std::vector<bool> in_pool(trace.tensors.size());
  for (size_t i = 0; i < in_pool.size(); ++i) {
    in_pool[i] = trace.tensors[i].kind != TensorKind::kParameter;
  }
  for (const Op& op : trace.ops) {
    if (op.type != OpType::kSoftmaxLoss || op.phase != Phase::kForward) continue;
    in_pool[Index(op.inputs.back())] = false;   // labels
    in_pool[Index(op.outputs.back())] = false;  // loss
  }
  return in_pool;
}

// The most bytes of the pool that are held at once, by phase.
struct PhasePeaks {
  Bytes forward, backward;
  Bytes both() const { return std::max(forward, backward); }
};

PhasePeaks PoolPeaks(const Trace& trace, const Report& report) {
  const std::vector<bool> in_pool = InPool(trace);
  PhasePeaks peaks;
  Bytes held;
  for (const Placement& placement : report.placements) {
    if (!placement.on_device()) continue;
    if (placement.tensor != kNoTensor && !in_pool[Index(placement.tensor)]) continue;
    if (placement.kind == PlacementKind::kAllocate) held += placement.block.size;
    if (placement.kind == PlacementKind::kFree) held -= placement.block.size;
    Bytes& peak = trace.op(placement.op).phase == Phase::kForward ? peaks.forward : peaks.backward;
    peak = std::max(peak, held);
  }
  return peaks;
}

// Returns the MiB of the pool and the weights.
double Footprint(const Inputs& inputs, Bytes pool) {
  return (pool + WeightsFootprint(*inputs.trace(), inputs.device().name)).mib();
}

double Aggregate(const Inputs& inputs, const Mode& mode) {
  return Footprint(inputs, PoolPeaks(*inputs.trace(), EagerRun(inputs, mode)).both());
}

// Returns the requests to the pool. With `image_leaks`, as in the runs of Table V, the image is
// never freed in forward, though backward requests it again.
AllocationLog PoolRequests(const Trace& trace, const Report& report, bool image_leaks) {
  const std::vector<bool> in_pool = InPool(trace);
  const TensorId image = trace.op(OpId{0}).inputs.front();
  const auto is_image = [&](const Placement& placement) {
    return placement.on_device() && placement.tensor == image;
  };
  const bool comes_back =
      std::count_if(report.placements.begin(), report.placements.end(), is_image) > 2;
  AllocationLog log;
  std::map<TensorId, uint32_t> live;
  bool leaks = image_leaks && comes_back;
  for (const Placement& placement : report.placements) {
    const TensorId id = placement.tensor;
    if (!placement.on_device() || (id != kNoTensor && !in_pool[Index(id)])) continue;
    if (placement.kind == PlacementKind::kAllocate) {
      live[id] = log.Allocate(placement.requested, placement.hint);
    } else if (leaks && id == image) {
      leaks = false;
    } else {
      log.Free(live.at(id));
    }
  }
  return log;
}

// Returns a cell of Table V by the paper's search from the aggregate up; nullopt if no pool is
// found. `heuristic` is best-fit, or high-end, which places tensors that stay at the high end.
Computed TableFive(const Inputs& inputs, const Mode& mode, std::string_view order,
                   const std::string& heuristic) {
  const Report report = EagerRun(inputs, mode, order, heuristic == "high-end" ? "kept" : "none");
  const auto pool =
      SearchPool(PoolRequests(*inputs.trace(), report, true), heuristic, inputs.device().alignment,
                 PoolPeaks(*inputs.trace(), report).both());
  return pool ? std::optional(Footprint(inputs, *pool)) : std::nullopt;
}

// Returns the least memory that any allocator reserves with any order and hint, which is the choice
// of the allocator `auto`. Weights count as in the other cells.
Computed TableFiveAuto(const Inputs& inputs, const Mode& mode) {
  std::vector<PolicyChoice> policies;
  for (const char* order : kOrders) {
    for (const char* hint : {"none", "kept"}) policies.emplace_back(mode.Eager(order, hint));
  }
  Case asked;
  asked.allocator = "auto";
  Draft run = CountedRun(inputs, mode);
  run.arena = asked.allocator.Undecided();
  run.policy = PolicyChoice::OneOf(std::move(policies));
  const Report report = Run(Decide(asked, std::move(run))).report;
  if (!report.fits()) return std::nullopt;
  Bytes weights;
  for (const Tensor& tensor : inputs.trace()->tensors) {
    if (tensor.kind != TensorKind::kParameter) continue;
    weights += RoundUp(tensor.size, inputs.device().alignment);
  }
  return Footprint(inputs, report.metrics.peak_reserved - weights);
}

// Returns a cell of Table II: CNMeM begins with a pool of the aggregate's size, and grows it if a
// request fails.
double TableTwo(const Inputs& inputs, const Mode& mode) {
  // The driver's own memory on the GTX 970, which all ten cells have in addition to pool and
  // weights.
  constexpr double kContextMiB = 177.9;
  const Report report = EagerRun(inputs, mode);
  const auto pool = MakeAllocator(
      fmt::format("cnmem:initial={}B", PoolPeaks(*inputs.trace(), report).both().count()),
      Bytes::Unlimited(), inputs.device().alignment);
  SPILLWAY_CHECK(!Replay(PoolRequests(*inputs.trace(), report, false), *pool));
  return Footprint(inputs, pool->Reserved()) + kContextMiB;
}

// --- Items --------------------------------------------------------------------------------------

// Returns true if only a sum reads the layer's output, perhaps normalised, and the sum works in
// place of another operand.
bool EndsInASum(const Network& network, LayerNode node) {
  while (network.Consumers(node).size() == 1) {
    const LayerNode next = network.Consumers(node).front();
    const OpType type = network.layer(next).type;
    if (type == OpType::kAdd) return network.Inputs(next).front() != node;
    if (type != OpType::kBatchNorm && type != OpType::kRelu) return false;
    node = next;
  }
  return false;
}

// Returns the MiB of all tensors that can be offloaded: the image and the outputs of convolutions
// and pools. Other layers work in place on these outputs, and projections of shortcuts end in a
// sum.
double Pinned(const PaperRow& row) {
  const Network network = BuildNetwork(row.workload.network);
  int64_t elements = 0;
  for (LayerNode node = 0; node < network.size(); ++node) {
    const OpType type = network.layer(node).type;
    const bool counts = type == OpType::kInput || type == OpType::kConv2d ||
                        type == OpType::kMaxPool2d || type == OpType::kAvgPool2d;
    if (counts && !EndsInASum(network, node)) elements += network.layer(node).output.elements();
  }
  return Bytes(4 * row.workload.batch * elements).mib();
}

double BaseMemory(const Inputs& inputs) {
  return ReportOf(inputs, "network-wide:algo=memory").metrics.peak_requested.gib();
}

// Returns the milliseconds of an iteration; nullopt if it does not fit.
Computed IterationTime(const Draft& run, const std::string& policy) {
  const Report report = ReportOf(run, policy);
  if (!report.fits()) return std::nullopt;
  return report.metrics.iteration.milliseconds();
}

Computed TableFour(const Inputs& inputs, const Mode& mode, std::string (Mode::*policy)() const) {
  return IterationTime(inputs.DraftOf({}), (mode.*policy)());
}

// Milliseconds of iterations: the base's in unlimited memory, the policies' in the memory that vDNN
// needs, or in the GPU's for dyn. The host's memory is unlimited.
struct Times {
  double base, vdnn, vdnnpp;
};

// Returns the times of a mode, the base with the algorithms `base_algo`; nullopt if one of the
// three runs does not fit.
std::optional<Times> TimesOf(const Inputs& inputs, const Mode& mode, const std::string& base_algo) {
  Draft run = inputs.DraftOf({});
  run.memory = run.device.memory = run.device.host_memory = Bytes::Unlimited();
  const auto base = IterationTime(run, "network-wide:algo=" + base_algo);
  run.memory = mode.dynamic() ? inputs.device().memory : MemoryBudget(mode.Vdnn()).In(run);
  const auto vdnn = IterationTime(run, mode.Vdnn());
  const auto vdnnpp = IterationTime(run, mode.Vdnnpp());
  if (!base || !vdnn || !vdnnpp) return std::nullopt;
  return Times{*base, *vdnn, *vdnnpp};
}

// Returns a policy's time over the time of the base with the fastest algorithms.
Computed FigureNine(const Inputs& inputs, const Mode& mode, double Times::*policy) {
  const auto times = TimesOf(inputs, mode, "performance");
  return times ? std::optional((*times).*policy / times->base) : std::nullopt;
}

// Returns the percentage of the time that vDNN adds to the base with the same algorithms and vDNN++
// does not add; nullopt if vDNN adds none.
Computed Improvement(const Inputs& inputs, const Mode& mode) {
  const auto times = TimesOf(inputs, mode, mode.algo());
  if (!times || times->vdnn <= times->base) return std::nullopt;
  return 100 * (times->vdnn - times->vdnnpp) / (times->vdnn - times->base);
}

// Returns the most MiB of the pool that are held in the phase.
double FigureFive(const Inputs& inputs, const Mode& mode, Bytes PhasePeaks::*phase) {
  return (PoolPeaks(*inputs.trace(), EagerRun(inputs, mode)).*phase).mib();
}

// Returns the milliseconds, forward and backward, of a layer on 64 channels of 112 x 112 at batch
// 128 with the algorithms of least workspace. The layer is a convolution, or pooling if `filter` is
// 0.
double TableOneLayer(const PaperRow& row, int64_t filter) {
  const Device device = LoadDevice(row.asked.device);
  const auto cost = RooflineCostModel(device);
  Network net("n", {64, 112, 112});
  // With a convolution below, the layer has to compute the gradient of its input.
  const LayerNode below = net.Conv("below", net.image(), ConvSpec::Square(64, 1));
  const LayerNode x = filter == 0
                          ? net.MaxPool("layer", below, {2, 2})
                          : net.Conv("layer", below, ConvSpec::Square(64, filter, 1, filter / 2));
  net.SoftmaxLoss("loss", net.Linear("fc", x, 10));
  const Trace trace = LowerNetwork(net, {128, "vdnn", true});
  Duration time;
  for (const Op& op : trace.ops) {
    if (op.name != "layer.fwd" && op.name != "layer.bwd") continue;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      const auto kernels = cost.Kernels(op, slot, op.batch);
      time += kernels[LeastWorkspace(kernels)].time;
    }
  }
  return time.milliseconds();
}

// Returns the milliseconds of copying that layer's input to the host and back.
double TableOneTransfer(const PaperRow& row) {
  const RooflineCostModel cost(LoadDevice(row.asked.device));
  const Bytes input(int64_t{128} * 64 * 112 * 112 * 4);
  return (cost.CopyTime(Direction::kToHost, input) + cost.CopyTime(Direction::kToDevice, input))
      .milliseconds();
}

PaperTable TableOne() {
  PaperTable table{"Tab1", Names(), {{}}, {}, PaperRequest::kPaperName};
  for (const auto& [name, filter] : {std::pair<const char*, int64_t>{"POOL", 0},
                                     {"1x1 CONV", 1},
                                     {"3x3 CONV", 3},
                                     {"5x5 CONV", 5}}) {
    table.columns.push_back({fmt::format("Tab1 {} ms", name), "ms", OfRow(TableOneLayer, filter)});
  }
  table.columns.push_back({"Tab1 transfer ms", "ms", TableOneTransfer});
  return table;
}

// Returns the sizes of the layers' outputs of the network that the paper constructs (Table III).
PaperTable TableThree() {
  const auto output = [](int64_t Shape::*part) {
    return [=](const PaperRow& row) -> Computed {
      const Network network = BuildNetwork(row.workload.network);
      for (LayerNode node = 0; node < network.size(); ++node) {
        const LayerSpec& layer = network.layer(node);
        if (layer.name == row.layer) return static_cast<double>(layer.output.*part);
      }
      return std::nullopt;
    };
  };
  return {"Tab3",
          Names(),
          Rows({{"constructed(5)", 256}}, {0},
               {"conv1", "conv2_5.1x1", "conv2_5.5x5", "pool1", "conv3", "fc1"}),
          {{"Tab3 {workload} {layer} side", "count", output(&Shape::height)},
           {"Tab3 {workload} {layer} channels", "count", output(&Shape::channels)}},
          PaperRequest::kPaperName};
}

// Returns the milliseconds of a layer's forward step or of the copy of its input to the host;
// nullopt if the network has no such layer.
Computed FigureSix(const PaperRow& row, bool transfer) {
  const Inputs inputs(row.asked);
  for (const Op& op : inputs.trace()->ops) {
    if (op.phase != Phase::kForward || inputs.trace()->layer(op.layer).name != row.layer) continue;
    if (transfer) {
      return inputs.cost()
          ->CopyTime(Direction::kToHost, inputs.trace()->tensor(op.inputs[0]).size)
          .milliseconds();
    }
    const auto kernels = inputs.cost()->Kernels(op, 0, op.batch);
    return kernels[LeastWorkspace(kernels)].time.milliseconds();
  }
  return std::nullopt;
}

PaperTable TableOfLayers() {
  PaperTable table{"Fig6", Names(), {}, {}};
  for (const bool transfer : {false, true}) {
    table.columns.push_back(
        {fmt::format("Fig6 {{workload}} {{layer}} {}", transfer ? "transfer" : "forward"), "ms",
         OfRow(FigureSix, transfer)});
  }
  const Workload vgg{"vgg16", 64};
  const Network network = BuildNetwork(vgg.network);
  for (LayerNode node = 1; node < network.size(); ++node) {
    const LayerSpec& layer = network.layer(node);
    const bool shown = layer.type == OpType::kConv2d || layer.type == OpType::kMaxPool2d;
    if (shown) table.rows.push_back({vgg, 0, layer.name});
  }
  return table;
}

// Returns a table whose columns are for each mode.
PaperTable TableOfModes(const std::string& name, const std::vector<Workload>& workloads,
                        std::span<const Mode> modes, const std::vector<ModeColumn<Mode>>& columns,
                        PaperRequest request = PaperRequest::kName) {
  return {name, Names(), Rows(workloads), ForModes(modes, columns), request};
}

}  // namespace

std::vector<PaperTable> VdnnppTables(const PaperValues& printed) {
  std::vector<PaperTable> tables = CompressionTables(printed);
  const auto add = [&](PaperTable table, const char* device) {
    table.device = device;
    tables.push_back(std::move(table));
  };
  // Host memory for all tensors that can be offloaded (section III-C), and the memory that the base
  // memory manager needs (section V-A).
  add({"Text",
       Names(),
       {{{"alexnet-plain", 128}}, {{"vgg16", 128}}, {{"resnet152", 128}}},
       {{"pinned {workload} MB", "MB", OfRow(Pinned)}},
       PaperRequest::kPaperName},
      "");
  add({"Text",
       Names(),
       {{{"vgg116-d", 32}}, {{"vgg191-d", 32}}},
       {{"{workload} GB", "GB", OfInputs(BaseMemory)}},
       PaperRequest::kPaperName},
      "");
  add(TableOne(), kLargeGpu);
  add(TableOfModes("Tab2", {{"alexnet-plain", 128}, {"vgg16", 16}}, kModes,
                   {{"Tab2 {workload} {mode} expected", "MB", OfInputs(Aggregate), true},
                    {"Tab2 {workload} {mode} actual", "MB", OfInputs(TableTwo), true}},
                   PaperRequest::kPaperName),
      kSmallGpu);
  add(TableThree(), "");

  using Columns = std::vector<ModeColumn<Mode>>;
  const auto both = [](const std::string& pattern, const char* unit, auto compute, auto vdnn,
                       auto vdnnpp) -> Columns {
    return {{pattern + "vDNN", unit, OfInputs(compute, vdnn)},
            {pattern + "vDNN++", unit, OfInputs(compute, vdnnpp)}};
  };
  const Columns iterations =
      both("Tab4 {workload} {mode} ", "ms", TableFour, &Mode::Vdnn, &Mode::Vdnnpp);
  constexpr std::array kPrinted{Mode{"dyn"}, Mode{"conv"}, Mode{"all"}, Mode{"aconv"}};
  add(TableOfModes("Tab4", {{"vgg116-d", 32}, {"vgg191-d", 32}}, kPrinted, iterations), kLargeGpu);
  add(TableOfModes("Tab4", {}, kModes, iterations), kLargeGpu);

  Columns heuristics{{"Tab5 {workload} {mode} aggregate", "MB", OfInputs(Aggregate), true}};
  for (const char* heuristic : {"best-fit", "high-end"}) {
    for (const char* order : kOrders) {
      heuristics.push_back({fmt::format("Tab5 {{workload}} {{mode}} {} {}", order, heuristic), "MB",
                            OfInputs(TableFive, order, heuristic), true});
    }
  }
  heuristics.push_back({"Tab5 {workload} {mode} auto", "MB", OfInputs(TableFiveAuto), true});
  add(TableOfModes("Tab5", {{"alexnet-plain", 256}}, kModes, heuristics, PaperRequest::kPaperName),
      kLargeGpu);

  add(TableOfModes("Fig5", {{"alexnet-plain", 256}}, kModes,
                   {{"Fig5 {workload} {mode} forward", "MB",
                     OfInputs(FigureFive, &PhasePeaks::forward), true},
                    {"Fig5 {workload} {mode} backward", "MB",
                     OfInputs(FigureFive, &PhasePeaks::backward), true}}),
      kLargeGpu);
  add(TableOfLayers(), kLargeGpu);
  const Columns relative =
      both("Fig9 {workload} {mode} ", "x", FigureNine, &Times::vdnn, &Times::vdnnpp);
  add(TableOfModes("Fig9", {{"alexnet-plain", 256}, {"vgg16", 64}}, kModes, relative), kLargeGpu);
  add(TableOfModes("Fig9", {{"alexnet-plain", 128}, {"vgg16", 16}}, kModes, relative), kSmallGpu);

  // Claims of section V-A.
  constexpr Mode kConstructed{"conv", false};
  const auto absolute = [=](double Times::*time) {
    return OfInputs([=](const Inputs& inputs) -> Computed {
      const auto times = TimesOf(inputs, kConstructed, kConstructed.algo());
      return times ? std::optional((*times).*time) : std::nullopt;
    });
  };
  add({"Claims",
       Names(),
       {{{"constructed(5)", 256}}, {{"constructed(5)", 64}}},
       {{"{workload} base(m) ms", "ms", absolute(&Times::base)},
        {"{workload} conv(m) vDNN ms", "ms", absolute(&Times::vdnn)},
        {"{workload} conv(m) vDNN++ ms", "ms", absolute(&Times::vdnnpp)}},
       PaperRequest::kPaperName},
      kLargeGpu);
  add({"Claims",
       Names(),
       {{{"alexnet-plain", 256}}},
       {{"improvement {workload} all(m) %", "%", OfInputs(Improvement, Mode{"all", false})}},
       PaperRequest::kPaperName},
      kLargeGpu);
  add({"Claims",
       Names(),
       {{{"alexnet-plain", 128}}},
       {{"improvement {workload} all(p) %", "%", OfInputs(Improvement, Mode{"all"})},
        {"{workload} all(m) vDNN++ ms", "ms", OfInputs([](const Inputs& inputs) {
           const auto times = TimesOf(inputs, {"all", false}, "memory");
           return times ? std::optional(times->vdnnpp) : std::nullopt;
         })},
        {"CPU of compression {workload} least %", "%",
         OfInputs([](const Inputs& i) { return std::ranges::min(CompressionCpu(i)); })},
        {"CPU of compression {workload} most %", "%",
         OfInputs([](const Inputs& i) { return std::ranges::max(CompressionCpu(i)); })}},
       PaperRequest::kPaperName},
      kSmallGpu);
  for (PaperTable& table : tables) table.preset = "vdnnpp";
  return tables;
}

}  // namespace spillway::lab
