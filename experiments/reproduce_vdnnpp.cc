#include "experiments/reproduce_vdnnpp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <memory>
#include <utility>

#include "experiments/arena.h"
#include "experiments/catalogue.h"
#include "experiments/simulate.h"
#include "sim/alloc/allocation_log.h"
#include "sim/alloc/make_allocator.h"
#include "sim/codec/zero_value.h"
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

// The authors' stand-alone test: eight threads, blocks of 1 / 64 of a layer.
constexpr Growth kPaperGrowth{8, 8};

// What all(m) offloads, by the names of the tensors.
std::vector<const Tensor*> OffloadedByAll(const Scene& scene) {
  const Report report = EagerRun(scene, {"all", false}, "prefetch-first", "none");
  std::vector<const Tensor*> tensors;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.kind == CommandKind::kToHost) tensors.push_back(&scene.trace.tensor(entry.tensor));
  }
  return tensors;
}

// The share of pinned memory that all(m) saves, in percent, if every feature map has this density.
// The image has no zeros to speak of and stays as it is.
double SavingAt(const Scene& scene, double density) {
  Bytes plain, compressed;
  for (const Tensor* tensor : OffloadedByAll(scene)) {
    plain += tensor->size;
    compressed += tensor->kind == TensorKind::kActivation
                      ? CompressedSize(tensor->size, density, kPaperGrowth)
                      : tensor->size;
  }
  return 100 * (1 - compressed.mib() / plain.mib());
}

// The density that would explain a saving in percent, to a thousandth; nullopt if none does.
std::optional<double> DensityFor(const Scene& scene, double saving) {
  for (int thousandths = 1000; thousandths >= 0; --thousandths) {
    if (SavingAt(scene, thousandths / 1000.0) >= saving) return thousandths / 1000.0;
  }
  return std::nullopt;
}

// A number of a feature map, "conv1" for its layer's output: size in MB, ratio25, ratio50 or
// ratio75 for its compressed size over that at a density of so many percent, compress or decompress
// for the time, in ms, that eight threads need at the rates of the device file.
std::optional<double> FigureTen(const Workload& workload, std::string_view layer,
                                std::string_view column) {
  const Scene scene(workload, kLargeGpu);
  for (const Tensor* tensor : OffloadedByAll(scene)) {
    if (std::string_view(tensor->name).substr(0, tensor->name.find('.')) != layer) continue;
    const auto time = [&](Bandwidth thread) {
      return TransferTime(tensor->size, {thread.bytes_per_second * kPaperGrowth.threads})
          .milliseconds();
    };
    if (column == "size") return tensor->size.mib();
    if (column == "compress") return time(scene.device.codec.compress);
    if (column == "decompress") return time(scene.device.codec.decompress);
    const double density = column == "ratio25" ? 0.25 : column == "ratio50" ? 0.5 : 0.75;
    return CompressedSize(tensor->size, density, kPaperGrowth).mib() / tensor->size.mib();
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
  if (saving && rest == "%") {
    // The paper's densities are in a figure that it does not draw.
    item.compute = [] { return std::nullopt; };
    return item;
  }
  if (TakeWord(rest) != "at") return std::nullopt;
  const auto value = ParseShare(TakeWord(rest));
  if (!value || rest != (saving ? "%" : "") || (saving && *value > 1)) return std::nullopt;
  item.compute = [=, workload = *workload, value = *value]() -> std::optional<double> {
    const Scene scene(workload, kLargeGpu);
    return saving ? SavingAt(scene, value) : DensityFor(scene, value);
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
    constexpr std::array<std::string_view, 6> kColumns{"size",    "ratio25",  "ratio50",
                                                       "ratio75", "compress", "decompress"};
    if (std::find(kColumns.begin(), kColumns.end(), column) == kColumns.end()) return std::nullopt;
    if (column != "size") item.evidence = "x";
    item.unit = column == "size" ? "MB" : column.starts_with("ratio") ? "x" : "ms";
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
      if (tensor->kind != TensorKind::kActivation) continue;
      const std::string layer = tensor->name.substr(0, tensor->name.find('.'));
      add("AlexNet(128)", {layer.c_str()},
          {"size", "ratio25", "ratio50", "ratio75", "compress", "decompress"});
    }
    items.push_back("saving AlexNet(128) %");
    items.push_back("density AlexNet(128) at 36");
    items.push_back("saving VGG-16(16) %");
    items.push_back("density VGG-16(16) at 67");
  }
  return items;
}

}  // namespace spillway
