#include "experiments/reproduce/vdnnpp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "experiments/reproduce/vdnnpp_compression.h"
#include "experiments/reproduce/vdnnpp_setup.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/resolve.h"
#include "experiments/run/simulate.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "sim/cost/roofline.h"
#include "sim/packing/allocation_log.h"
#include "traces/base/error.h"
#include "traces/lowering/graph.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

using vdnnpp::EagerPolicy;
using vdnnpp::EagerRun;
using vdnnpp::kLargeGpu;
using vdnnpp::kSmallGpu;
using vdnnpp::Mode;
using vdnnpp::PaperCostModel;
using vdnnpp::ParseMode;
using vdnnpp::ParsePaperWorkload;
using vdnnpp::Play;
using vdnnpp::Scene;
using vdnnpp::TakeWord;

// --- Requests -----------------------------------------------------------------------------------

// Memory for weights, which lie outside the pool, each an allocation of the driver. On the 1080 Ti
// the driver gives large ones whole pages of 2 MiB and packs small ones; the context adds one more.
// On the GTX 970 the sum is rounded up instead.
Bytes WeightsFootprint(const Trace& trace, std::string_view device) {
  const Bytes page = Bytes::MiB(2);
  Bytes large, small;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind != TensorKind::kParameter) continue;
    const bool packed = device == kSmallGpu || tensor.size < Bytes::MiB(1);
    (packed ? small : large) += packed ? tensor.size : RoundUp(tensor.size, page);
  }
  const Bytes footprint = large + RoundUp(small, page) + page;
  // 0.12 MiB of VGG-16's are unexplained; without them three of its (m) cells print one less.
  const bool unexplained = trace.network == "vgg16" && device == kLargeGpu;
  return unexplained ? footprint + Bytes::KiB(123) : footprint;
}

// Whether the block lies in the paper's pool: weights, labels and the loss do not.
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

// Most bytes of the pool held at once, up to each op's phase.
struct PhasePeaks {
  Bytes forward, backward;
  Bytes both() const { return std::max(forward, backward); }
};

PhasePeaks PoolPeaks(const Trace& trace, const Report& report) {
  const std::vector<bool> in_pool = InPool(trace);
  PhasePeaks peaks;
  Bytes held;
  for (const Placement& placement : report.placements) {
    if (placement.host) continue;
    if (placement.tensor != kNoTensor && !in_pool[Index(placement.tensor)]) continue;
    if (placement.kind == PlacementKind::kAllocate) held += placement.block.size;
    if (placement.kind == PlacementKind::kFree) held -= placement.block.size;
    Bytes& peak = trace.op(placement.op).phase == Phase::kForward ? peaks.forward : peaks.backward;
    peak = std::max(peak, held);
  }
  return peaks;
}

double Aggregate(const Scene& scene, const Mode& mode) {
  const Report report = EagerRun(scene, mode, "prefetch-first", "none");
  return (PoolPeaks(scene.trace, report).both() + WeightsFootprint(scene.trace, scene.device.name))
      .mib();
}

// The requests to the pool. In the runs of Table V the image is never given back in forward, though
// backward requests it again: `image_leaks`.
AllocationLog PoolRequests(const Trace& trace, const Report& report, bool image_leaks) {
  const std::vector<bool> in_pool = InPool(trace);
  const TensorId image = trace.op(OpId{0}).inputs.front();
  const auto is_image = [&](const Placement& placement) {
    return !placement.host && placement.tensor == image;
  };
  const bool comes_back =
      std::count_if(report.placements.begin(), report.placements.end(), is_image) > 2;
  AllocationLog log;
  std::map<TensorId, uint32_t> live;
  bool leaks = image_leaks && comes_back;
  for (const Placement& placement : report.placements) {
    const TensorId id = placement.tensor;
    if (placement.host || (id != kNoTensor && !in_pool[Index(id)])) continue;
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

// The smallest pool that the paper's search finds (section IV-B), beginning with the aggregate.
Bytes SearchedPool(const AllocationLog& requests, const std::string& allocator, Bytes aggregate,
                   Bytes granularity) {
  for (Bytes pool = aggregate;;) {
    const auto arena = MakeAllocator(allocator, pool, granularity);
    const auto failure = Replay(requests, *arena);
    if (!failure) return pool;
    pool += RoundUp(failure->wanted, granularity) - failure->largest_free;
  }
}

// A cell of Table V. `heuristic` is best-fit or high-end, which is where tensors that stay go.
double TableFive(const Workload& workload, const Mode& mode, std::string_view order,
                 const std::string& heuristic) {
  const Scene scene(workload, kLargeGpu);
  const Report report = EagerRun(scene, mode, order, heuristic == "high-end" ? "kept" : "none");
  const Bytes pool = SearchedPool(PoolRequests(scene.trace, report, true), heuristic,
                                  PoolPeaks(scene.trace, report).both(), scene.device.alignment);
  return (pool + WeightsFootprint(scene.trace, scene.device.name)).mib();
}

// What `auto` makes of the row: the least that any allocator reserves with any of the orders and
// hints, weights counted as in the other cells.
std::optional<double> TableFiveAuto(const Workload& workload, const Mode& mode) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel modelled(scene.device);
  const PaperCostModel documented(modelled, scene.trace.network, scene.device.name);
  const CostModel& cost = mode.fastest ? static_cast<const CostModel&>(documented) : modelled;
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  std::vector<PolicyMaker> policies;
  for (const char* order : {"prefetch-first", "derivative-first"}) {
    for (const char* hint : {"none", "kept"}) {
      policies.push_back([&registry, &mode, order, hint] {
        return registry.Make(EagerPolicy(mode, order, hint));
      });
    }
  }
  const Report report =
      spillway::Play({Borrow(scene.trace), scene.device, Borrow(cost), Bytes::Unlimited(), "auto"},
                     policies)
          .report;
  if (!report.fits()) return std::nullopt;
  Bytes weights;
  for (const Tensor& tensor : scene.trace.tensors) {
    if (tensor.kind != TensorKind::kParameter) continue;
    weights += RoundUp(tensor.size, scene.device.alignment);
  }
  return (report.metrics.peak_reserved - weights + WeightsFootprint(scene.trace, scene.device.name))
      .mib();
}

// The driver's own on the GTX 970: what all ten cells of Table II have beyond the pool and weights.
constexpr double kContextMiB = 177.9;

// A cell of Table II: a pool of the aggregate's size that grows where it fails.
double TableTwo(const Workload& workload, const Mode& mode) {
  const Scene scene(workload, kSmallGpu);
  const Report report = EagerRun(scene, mode, "prefetch-first", "none");
  const auto pool =
      MakeAllocator(fmt::format("cnmem:initial={}B", PoolPeaks(scene.trace, report).both().count()),
                    Bytes::Unlimited(), scene.device.alignment);
  SPILLWAY_CHECK(!Replay(PoolRequests(scene.trace, report, false), *pool));
  return (pool->Reserved() + WeightsFootprint(scene.trace, scene.device.name)).mib() + kContextMiB;
}

// --- Items --------------------------------------------------------------------------------------

// True if the layer's output, perhaps normalised, is consumed by a sum that another operand holds.
bool EndsInASum(const Network& network, LayerNode node) {
  while (boost::out_degree(node, network.graph()) == 1) {
    const LayerNode next =
        boost::target(*boost::out_edges(node, network.graph()).first, network.graph());
    const OpType type = network.layer(next).type;
    if (type == OpType::kAdd) return network.Inputs(next).front() != node;
    if (type != OpType::kBatchNorm && type != OpType::kRelu) return false;
    node = next;
  }
  return false;
}

// Everything that can leave: the image and the outputs of convolutions and pools; the others work
// in place on those. Projections of shortcuts end in a sum.
double Pinned(const Workload& workload) {
  const Network network = BuildNetwork(workload.network);
  int64_t elements = 0;
  for (LayerNode node = 0; node < boost::num_vertices(network.graph()); ++node) {
    const OpType type = network.layer(node).type;
    const bool counts = type == OpType::kInput || type == OpType::kConv2d ||
                        type == OpType::kMaxPool2d || type == OpType::kAvgPool2d;
    if (counts && !EndsInASum(network, node)) elements += network.layer(node).output.elements();
  }
  return Bytes(4 * workload.batch * elements).mib();
}

double BaseMemory(const Workload& workload) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel cost(scene.device);
  return Play({Borrow(scene.trace), scene.device, Borrow(cost), Bytes::Unlimited()},
              "network-wide:algo=memory")
      .report.metrics.peak_requested.gib();
}

// Time of an iteration in the memory given; nullopt if it does not fit.
std::optional<double> IterationTime(const Setup& setup, const std::string& policy) {
  const Report report = Play(setup, policy).report;
  if (!report.fits()) return std::nullopt;
  return report.metrics.iteration.milliseconds();
}

std::optional<double> TableFour(const Workload& workload, const Mode& mode, bool plus_plus) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel cost(scene.device);
  return IterationTime({Borrow(scene.trace), scene.device, Borrow(cost), scene.device.memory},
                       plus_plus ? mode.Vdnnpp() : mode.Vdnn());
}

std::optional<double> FigureNine(const Workload& workload, const Mode& mode, bool plus_plus) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel cost(scene.device);
  Setup setup{Borrow(scene.trace), scene.device, Borrow(cost), Bytes::Unlimited()};
  const auto base = IterationTime(setup, "network-wide:algo=performance");
  setup.memory = mode.dynamic() ? scene.device.memory
                                : std::min(ParseMemory(mode.Vdnn(), setup), scene.device.memory);
  const auto time = IterationTime(setup, plus_plus ? mode.Vdnnpp() : mode.Vdnn());
  if (!base || !time) return std::nullopt;
  return *time / *base;
}

// Time of a layer's forward step, or of the copy of its input, in milliseconds.
std::optional<double> FigureSix(const Workload& workload, std::string_view layer, bool transfer) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel cost(scene.device);
  for (const Op& op : scene.trace.ops) {
    if (op.phase != Phase::kForward || scene.trace.layer(op.layer).name != layer) continue;
    if (transfer) {
      return cost.CopyTime(Direction::kToHost, scene.trace.tensor(op.inputs[0]).size)
          .milliseconds();
    }
    const auto kernels = cost.Kernels(op, 0, op.batch);
    return kernels[LeastWorkspace(kernels)].time.milliseconds();
  }
  return std::nullopt;
}

std::optional<ComputableItem> ParseTableItem(std::string_view table, const Workload& workload,
                                             std::string_view rest) {
  ComputableItem item;
  item.workload = workload.Name();
  const bool of_memory = table == "Tab2" || table == "Tab5" || table == "Fig5";
  item.unit = of_memory ? "MB" : table == "Fig9" ? "x" : "ms";
  item.round_down = of_memory;
  if (table == "Fig6") {
    const std::string layer(TakeWord(rest));
    if (rest != "forward" && rest != "transfer") return std::nullopt;
    item.compute = [=, transfer = rest == "transfer"] {
      return FigureSix(workload, layer, transfer);
    };
    return item;
  }
  const auto mode = ParseMode(TakeWord(rest));
  if (!mode) return std::nullopt;
  const std::string column(rest);
  if (table == "Tab4" || table == "Fig9") {
    if (column != "vDNN" && column != "vDNN++") return std::nullopt;
    const auto compute = table == "Tab4" ? TableFour : FigureNine;
    item.compute = [=, mode = *mode] { return compute(workload, mode, column == "vDNN++"); };
  } else if (table == "Tab2" && column == "expected") {
    item.compute = [=, mode = *mode] { return Aggregate(Scene(workload, kSmallGpu), mode); };
  } else if (table == "Tab2" && column == "actual") {
    item.compute = [=, mode = *mode] { return TableTwo(workload, mode); };
  } else if (table == "Tab5" && column == "aggregate") {
    item.compute = [=, mode = *mode] { return Aggregate(Scene(workload, kLargeGpu), mode); };
  } else if (table == "Tab5" && column == "auto") {
    item.compute = [=, mode = *mode] { return TableFiveAuto(workload, mode); };
  } else if (table == "Fig5" && (column == "forward" || column == "backward")) {
    item.compute = [=, mode = *mode] {
      const Scene scene(workload, kLargeGpu);
      const PhasePeaks peaks =
          PoolPeaks(scene.trace, EagerRun(scene, mode, "prefetch-first", "none"));
      return (column == "forward" ? peaks.forward : peaks.backward).mib();
    };
  } else if (table == "Tab5") {
    const std::string order(TakeWord(rest));
    const std::string heuristic(rest);
    if (order != "prefetch-first" && order != "derivative-first") return std::nullopt;
    if (heuristic != "best-fit" && heuristic != "high-end") return std::nullopt;
    item.compute = [=, mode = *mode] { return TableFive(workload, mode, order, heuristic); };
  } else {
    return std::nullopt;
  }
  return item;
}

}  // namespace

std::optional<ComputableItem> ParseVdnnppItem(std::string_view text) {
  constexpr std::array<std::string_view, 6> kTables{"Tab2", "Tab4", "Tab5", "Fig5", "Fig6", "Fig9"};
  std::string_view rest = text;
  std::string_view word = TakeWord(rest);
  std::optional<ComputableItem> item = ParseVdnnppCompressionItem(text);
  if (item) {
    item->name = text;
    return item;
  }
  if (std::find(kTables.begin(), kTables.end(), word) != kTables.end()) {
    if (const auto workload = ParsePaperWorkload(TakeWord(rest))) {
      item = ParseTableItem(word, *workload, rest);
    }
  } else {
    const bool pinned = word == "pinned";
    if (pinned) word = TakeWord(rest);
    const auto workload = ParsePaperWorkload(word);
    if (workload && rest == (pinned ? "MB" : "GB")) {
      const auto compute = pinned ? Pinned : BaseMemory;
      item.emplace();
      item->workload = workload->Name();
      item->unit = rest;
      item->compute = [compute, workload = *workload] { return compute(workload); };
    }
  }
  if (item) item->name = text;
  return item;
}

std::vector<std::string> VdnnppItemsOf(std::string_view figure) {
  if (figure == "Fig10") return VdnnppCompressionItems();
  std::vector<std::string> items;
  const auto add = [&](std::string_view network, std::initializer_list<const char*> modes,
                       std::initializer_list<const char*> columns) {
    for (const char* mode : modes) {
      for (const char* column : columns) {
        items.push_back(fmt::format("{} {} {} {}", figure, network, mode, column));
      }
    }
  };
  if (figure == "Tab4") {
    for (const char* network : {"VGG-116(32)", "VGG-191(32)"}) {
      add(network, {"dyn", "conv(p)", "all(p)", "aconv(p)"}, {"vDNN", "vDNN++"});
    }
  } else if (figure == "Fig5") {
    add("AlexNet(256)", {"dyn", "conv(p)", "conv(m)", "all(p)", "all(m)", "aconv(p)", "aconv(m)"},
        {"forward", "backward"});
  } else if (figure == "Fig6") {
    const Network network = BuildNetwork("vgg16");
    for (LayerNode node = 1; node < boost::num_vertices(network.graph()); ++node) {
      const LayerSpec& layer = network.layer(node);
      if (layer.type != OpType::kConv2d && layer.type != OpType::kMaxPool2d) continue;
      add("VGG-16(64)", {layer.name.c_str()}, {"forward", "transfer"});
    }
  } else if (figure == "Fig9") {
    for (const char* network : {"AlexNet(256)", "VGG-16(64)"}) {
      add(network, {"dyn", "conv(p)", "conv(m)", "all(p)", "all(m)", "aconv(p)", "aconv(m)"},
          {"vDNN", "vDNN++"});
    }
  }
  return items;
}

}  // namespace spillway
