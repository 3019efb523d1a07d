#include "experiments/reproduce_vdnnpp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "experiments/arena.h"
#include "experiments/catalogue.h"
#include "experiments/simulate.h"
#include "sim/alloc/allocation_log.h"
#include "sim/alloc/make_allocator.h"
#include "sim/core/error.h"
#include "sim/cost/roofline.h"
#include "traces/graph.h"
#include "traces/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

constexpr const char* kLargeGpu = "gtx_1080ti";
constexpr const char* kSmallGpu = "gtx_970";

// --- Names --------------------------------------------------------------------------------------

// Takes what stands before the first blank off `text`.
std::string_view TakeWord(std::string_view& text) {
  const size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

// "VGG-16(64)" as the paper writes it, or nullopt.
std::optional<Workload> ParsePaperWorkload(std::string_view text) {
  const size_t open = text.rfind('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  std::string network;
  for (const char c : text.substr(0, open)) {
    network += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames{
      {{"alexnet", "alexnet-plain"},
       {"vgg-16", "vgg16"},
       {"vgg-116", "vgg116-d"},
       {"vgg-191", "vgg191-d"},
       {"resnet-152", "resnet152"}}};
  for (const auto& [paper, ours] : kNames) {
    if (network == paper) network = ours;
  }
  try {
    return ParseWorkload(
        fmt::format("{}:{}", network, text.substr(open + 1, text.size() - open - 2)));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

struct Mode {
  std::string offload;  // as the policies name it
  bool fastest = true;  // (p); else (m)

  bool dynamic() const { return offload == "dyn"; }
  std::string algo() const { return fastest ? "performance" : "memory"; }
  std::string Vdnn() const {
    return dynamic() ? "vdnn-dyn" : fmt::format("vdnn-{}:algo={}", offload, algo());
  }
  std::string Vdnnpp() const {
    return dynamic() ? "vdnnpp" : fmt::format("vdnnpp:offload={},algo={}", offload, algo());
  }
};

std::optional<Mode> ParseMode(std::string_view text) {
  if (text == "dyn") return Mode{"dyn", true};
  for (const char* offload : {"all", "conv", "aconv"}) {
    if (text == fmt::format("{}(m)", offload)) return Mode{offload, false};
    if (text == fmt::format("{}(p)", offload)) return Mode{offload, true};
  }
  return std::nullopt;
}

// --- The paper's machine ------------------------------------------------------------------------

// Convolution algorithms whose workspaces the totals of Tables II and V contain, by layer; those
// that are not named need none. The paper does not print them: the library's search chose them on
// its GPUs. Of other networks the cost model's fastest are taken.
struct DocumentedAlgorithms {
  std::string_view network;
  std::string_view device;
  std::string_view everywhere;  // the algorithm of layers that are not named
  std::map<std::string_view, std::string_view> layers;
};

const std::vector<DocumentedAlgorithms>& Documented() {
  static const std::vector<DocumentedAlgorithms> documented{
      {"alexnet-plain",
       kLargeGpu,
       "",
       {{"conv2", "fft"}, {"conv3", "fft"}, {"conv4", "fft"}, {"conv5", "winograd_nonfused"}}},
      {"alexnet-plain", kSmallGpu, "", {{"conv2", "fft"}, {"conv4", "fft"}}},
      {"vgg16", kLargeGpu, "winograd_nonfused", {{"conv1_1", ""}, {"conv2_1", ""}}},
      {"vgg16", kSmallGpu, "winograd_nonfused", {{"conv1_1", ""}, {"conv1_2", ""}}},
  };
  return documented;
}

// Offers, for the convolutions of a network, the documented algorithm alone.
class PaperCostModel final : public CostModel {
 public:
  // `model` outlives this one.
  PaperCostModel(const CostModel& model, std::string_view network, std::string_view device)
      : model_(model) {
    for (const DocumentedAlgorithms& documented : Documented()) {
      if (documented.network == network && documented.device == device) {
        documented_ = &documented;
      }
    }
  }

  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override {
    const auto kernels = model_.Kernels(op, slot, batch);
    if (documented_ == nullptr || op.type != OpType::kConv2d) return kernels;
    const std::string_view layer = std::string_view(op.name).substr(0, op.name.find('.'));
    const auto named = documented_->layers.find(layer);
    const std::string_view algorithm =
        named == documented_->layers.end() ? documented_->everywhere : named->second;
    for (const Kernel& kernel : kernels) {
      if (kernel.algorithm == algorithm) return {&kernel, 1};
    }
    return kernels.subspan(LeastWorkspace(kernels), 1);
  }
  Duration CopyTime(Direction direction, Bytes size) const override {
    return model_.CopyTime(direction, size);
  }
  std::string Provenance() const override { return "algorithms documented for vDNN++"; }

 private:
  const CostModel& model_;
  const DocumentedAlgorithms* documented_ = nullptr;
};

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

// --- Requests -----------------------------------------------------------------------------------

struct Scene {
  Scene(const Workload& workload, const char* device_name)
      : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, "vdnnpp", true})),
        device(LoadDevice(device_name)) {}

  Trace trace;
  Device device;
};

Outcome Play(const Setup& setup, const std::string& policy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  return Simulate(setup, *registry.Make(policy));
}

std::string EagerPolicy(const Mode& mode, std::string_view order, std::string_view hint) {
  return fmt::format("vdnnpp:offload={},algo={},release=eager,order={},hint={}", mode.offload,
                     mode.algo(), order, hint);
}

// The run whose requests Tables II and V count, in unlimited memory.
Report EagerRun(const Scene& scene, const Mode& mode, std::string_view order,
                std::string_view hint) {
  const RooflineCostModel modelled(scene.device);
  const PaperCostModel documented(modelled, scene.trace.network, scene.device.name);
  const CostModel& cost = mode.fastest ? static_cast<const CostModel&>(documented) : modelled;
  return Play({scene.trace, scene.device, cost, Bytes::Unlimited()}, EagerPolicy(mode, order, hint))
      .report;
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
  const Resolved resolved =
      ResolveAllocator({scene.trace, scene.device, cost, Bytes::Unlimited(), "auto"}, policies);
  const Report report = Simulate(resolved.setup, *policies[resolved.policy]()).report;
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
  return Play({scene.trace, scene.device, cost, Bytes::Unlimited()}, "network-wide:algo=memory")
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
  return IterationTime({scene.trace, scene.device, cost, scene.device.memory},
                       plus_plus ? mode.Vdnnpp() : mode.Vdnn());
}

std::optional<double> FigureNine(const Workload& workload, const Mode& mode, bool plus_plus) {
  const Scene scene(workload, kLargeGpu);
  const RooflineCostModel cost(scene.device);
  Setup setup{scene.trace, scene.device, cost, Bytes::Unlimited()};
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

// --- Compression --------------------------------------------------------------------------------

// Percent of the words that are not zero, by layer: what the authors' stand-alone test fills its
// feature maps with, at random (their public code, compression_test/general_compression). The paper
// prints none.
using LayerDensities = std::map<std::string_view, int>;

// nullptr if the test does not have the network.
const LayerDensities* DocumentedDensities(std::string_view network) {
  static const std::map<std::string_view, LayerDensities> documented{
      {"alexnet-plain",
       {{"conv1", 50},
        {"pool1", 80},
        {"conv2", 40},
        {"pool2", 60},
        {"conv3", 70},
        {"conv4", 70},
        {"conv5", 30},
        {"pool5", 60}}},
      {"vgg16", {{"conv1_1", 50}, {"conv1_2", 20}, {"pool1", 30},   {"conv2_1", 20},
                 {"conv2_2", 10}, {"pool2", 20},   {"conv3_1", 20}, {"conv3_2", 20},
                 {"conv3_3", 10}, {"pool3", 20},   {"conv4_1", 20}, {"conv4_2", 10},
                 {"conv4_3", 10}, {"pool4", 10},   {"conv5_1", 20}, {"conv5_2", 20},
                 {"conv5_3", 10}, {"pool5", 15}}}};
  const auto found = documented.find(network);
  return found == documented.end() ? nullptr : &found->second;
}

std::string_view LayerOf(const Tensor& tensor) {
  return std::string_view(tensor.name).substr(0, tensor.name.find('.'));
}

// The feature maps that all(m) offloads. The image, which it offloads too, has no zeros to speak of.
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

// "saving NET(BATCH) %", "saving NET(BATCH) at DENSITY %" and "density NET(BATCH) at PERCENT".
std::optional<ComputableItem> ParseCompressionItem(bool saving, std::string_view rest) {
  const auto workload = ParsePaperWorkload(TakeWord(rest));
  if (!workload) return std::nullopt;
  ComputableItem item;
  item.workload = workload->Name();
  item.unit = saving ? "%" : "share";
  item.evidence = "x";
  item.round_down = saving;
  if (saving && rest == "%") {
    const LayerDensities* densities = DocumentedDensities(workload->network);
    if (densities == nullptr) return std::nullopt;
    item.compute = [=, workload = *workload] {
      const Scene scene(workload, kLargeGpu);
      return Saving(OffloadedByAll(scene), [&](const Tensor& tensor) {
        return densities->at(LayerOf(tensor)) / 100.0;
      });
    };
    return item;
  }
  if (TakeWord(rest) != "at") return std::nullopt;
  const auto value = ParseShare(TakeWord(rest));
  if (!value || rest != (saving ? "%" : "") || (saving && *value > 1)) return std::nullopt;
  item.compute = [=, workload = *workload, value = *value]() -> std::optional<double> {
    const Scene scene(workload, kLargeGpu);
    const auto tensors = OffloadedByAll(scene);
    if (!saving) return DensityFor(tensors, value);
    return Saving(tensors, [=](const Tensor&) { return value; });
  };
  return item;
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
  if (table == "Fig10") {
    const std::string layer(TakeWord(rest));
    const std::string column(rest);
    const auto unit = FigureTenColumns().find(column);
    if (unit == FigureTenColumns().end()) return std::nullopt;
    if (column != "size") item.evidence = "x";
    item.unit = unit->second;
    item.compute = [=] { return FigureTen(workload, layer, column); };
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
  constexpr std::array<std::string_view, 7> kTables{"Tab2", "Tab4", "Tab5", "Fig5",
                                                    "Fig6", "Fig9", "Fig10"};
  std::string_view rest = text;
  std::string_view word = TakeWord(rest);
  std::optional<ComputableItem> item;
  if (std::find(kTables.begin(), kTables.end(), word) != kTables.end()) {
    if (const auto workload = ParsePaperWorkload(TakeWord(rest))) {
      item = ParseTableItem(word, *workload, rest);
    }
  } else if (word == "saving" || word == "density") {
    item = ParseCompressionItem(word == "saving", rest);
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
  if (figure == "Fig10") {
    const Scene scene(*ParsePaperWorkload("AlexNet(128)"), kLargeGpu);
    for (const Tensor* tensor : OffloadedByAll(scene)) {
      const std::string layer(LayerOf(*tensor));
      for (const auto& [column, unit] : FigureTenColumns()) {
        items.push_back(fmt::format("Fig10 AlexNet(128) {} {}", layer, column));
      }
    }
    items.push_back("saving AlexNet(128) %");
    items.push_back("density AlexNet(128) at 36");
    items.push_back("saving VGG-16(16) %");
    items.push_back("density VGG-16(16) at 67");
  }
  return items;
}

}  // namespace spillway
