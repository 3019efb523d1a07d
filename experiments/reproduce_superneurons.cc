#include "experiments/reproduce_superneurons.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "experiments/catalogue.h"
#include "experiments/simulate.h"
#include "policies/superneurons_steps.h"
#include "sim/core/error.h"
#include "sim/cost/roofline.h"
#include "traces/graph.h"
#include "traces/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

constexpr const char* kPreset = "superneurons";
constexpr const char* kGpu = "k40c";

using Computed = std::optional<double>;

// --- Names --------------------------------------------------------------------------------------

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool TakeSuffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A network as the paper writes it and its batch there. The released networks take images of 227.
struct PaperNetwork {
  std::string_view paper;  // in lower case
  std::string_view ours;
  int64_t batch;
};
constexpr std::array kNetworks{
    PaperNetwork{"alexnet", "alexnet-227", 200},
    PaperNetwork{"vgg16", "vgg16@227", 32},
    PaperNetwork{"resnet50", "resnet50@227", 32},
    PaperNetwork{"resnet50/101", "resnet50@227", 32},
    PaperNetwork{"resnet101", "resnet101@227", 32},
    PaperNetwork{"resnet152", "resnet152@227", 32},
    PaperNetwork{"\"resnet151\"", "resnet152@227", 32},
    PaperNetwork{"resnet2500", "resnet(6,32,788,6)", 1},
    PaperNetwork{"inception v4", "inception-v4", 32},
    PaperNetwork{"inceptionv4", "inception-v4", 32},
    PaperNetwork{"densenet121", "densenet121", 32},
};

// "AlexNet" or "resnet50@224(64)"; nullopt if it does not look like a network.
std::optional<Workload> ParseNetwork(std::string_view text) {
  Workload workload{"", 0};
  // A batch, but not the blocks of resnet(3,4,6,3).
  const size_t open = text.rfind('(');
  if (open != std::string_view::npos && text.ends_with(')')) {
    if (const auto batch = ParseNumber(text.substr(open + 1, text.size() - open - 2))) {
      if (*batch < 1 || *batch > 65536) return std::nullopt;
      workload.batch = *batch;
      text = text.substr(0, open);
    }
  }
  workload.network = Lower(text);
  for (const PaperNetwork& known : kNetworks) {
    if (known.paper != workload.network) continue;
    workload.network = known.ours;
    if (workload.batch == 0) workload.batch = known.batch;
    return workload;  // whether the zoo has it or not
  }
  if (workload.batch == 0) workload.batch = 32;
  try {
    return ParseWorkload(workload.Name());
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

bool InZoo(const std::string& network) {
  try {
    ParseWorkload(network + ":1");
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// --- Runs ---------------------------------------------------------------------------------------

double Mib(Bytes bytes) { return bytes.mib(); }

struct Scene {
  explicit Scene(const Workload& workload)
      : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, kPreset, true})),
        device(LoadDevice(kGpu)),
        cost(device) {}

  Report Run(const std::string& policy, Bytes memory = Bytes::Unlimited(),
             const std::string& allocator = "best-fit") const {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    Setup setup{trace, device, cost, memory, allocator};
    return Simulate(setup, *registry.Make(policy)).report;
  }

  Trace trace;
  Device device;
  RooflineCostModel cost;
};

// The paper's techniques, each on top of those before it; every offload at once, nothing cached.
std::string PolicyOf(std::string_view technique, std::string_view recompute = "cost-aware") {
  const bool offloads = technique != "liveness";
  return fmt::format("superneurons:offload={},cache=none,recompute={},workspace=none",
                     offloads ? "conv" : "none", technique == "recompute" ? recompute : "none");
}

std::vector<StepMemory> Profile(const Workload& workload, const std::string& policy) {
  const Scene scene(workload);
  return StepMemories(scene.trace, scene.Run(policy));
}

size_t PeakStep(const std::vector<StepMemory>& steps) {
  const auto less = [](const StepMemory& a, const StepMemory& b) { return a.held < b.held; };
  return static_cast<size_t>(std::max_element(steps.begin(), steps.end(), less) - steps.begin());
}

// Counted storages, and their bytes.
struct Total {
  int tensors = 0;
  Bytes bytes;
};

Total CountedStorages(const Trace& trace) {
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  std::vector<bool> seen(trace.tensors.size());
  Total total;
  for (size_t i = 0; i < counted.size(); ++i) {
    const TensorId root = trace.Root(static_cast<TensorId>(i));
    if (!counted[i] || seen[Index(root)]) continue;
    seen[Index(root)] = true;
    ++total.tensors;
    total.bytes += trace.tensor(root).size;
  }
  return total;
}

// Distinct counted storages that an op names.
Bytes OperandBytes(const Trace& trace, const Op& op) {
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  std::vector<TensorId> storages;
  Bytes bytes;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *list) {
      const TensorId root = trace.Root(id);
      if (!counted[Index(id)] || std::count(storages.begin(), storages.end(), root) > 0) continue;
      storages.push_back(root);
      bytes += trace.tensor(root).size;
    }
  }
  return bytes;
}

// --- Items --------------------------------------------------------------------------------------

const Workload& Figure10() {
  static const Workload workload{"alexnet-227", 200};
  return workload;
}

Bytes OutputOf(const Trace& trace, const std::string& op_name) {
  for (const Op& op : trace.ops) {
    if (op.name == op_name) return trace.tensor(op.outputs.front()).size;
  }
  throw InputError("no op " + op_name);
}

double PeakMib(const char* technique) {
  const auto steps = Profile(Figure10(), PolicyOf(technique));
  return Mib(steps[PeakStep(steps)].held);
}

// 1 - peak / baseline, in percent.
double Saving(const char* technique) {
  const Bytes baseline = CountedStorages(Scene(Figure10()).trace).bytes;
  return 100 * (1 - PeakMib(technique) / Mib(baseline));
}

// What the peak step of the liveness run names itself, or what is held besides.
double PeakPart(bool own) {
  const Scene scene(Figure10());
  const auto steps = StepMemories(scene.trace, scene.Run(PolicyOf("liveness")));
  const size_t peak = PeakStep(steps);
  const Bytes operands = OperandBytes(scene.trace, scene.trace.ops[peak]);
  return Mib(own ? operands : steps[peak].held - operands);
}

// The sum that the paper prints: the liveness peak without the outputs of CONV1 to CONV3.
double PoolAfterOffload() {
  const Trace trace = Scene(Figure10()).trace;
  double sum = PeakMib("liveness");
  for (const char* conv : {"conv1.fwd", "conv2.fwd", "conv3.fwd"})
    sum -= Mib(OutputOf(trace, conv));
  return sum;
}

// Most bytes that a step needs where everything else has been offloaded.
double NeededPeak(const Workload& workload, const std::string& mode) {
  Bytes peak;
  for (const StepMemory& step : Profile(workload, PolicyOf("recompute", mode))) {
    peak = std::max(peak, step.needed);
  }
  return Mib(peak);
}

double ExtraSteps(const Workload& workload, const std::string& mode) {
  return static_cast<double>(
      Scene(workload).Run(PolicyOf("recompute", mode)).metrics.recomputed_ops);
}

double LayerCount(const Workload& workload) {
  return static_cast<double>(Scene(workload).trace.layers.size() + 1);
}

// Convolutions and linear layers on the longest path.
double Depth(const Workload& workload) {
  const Network network = BuildNetwork(workload.network);
  std::vector<int> depth(boost::num_vertices(network.graph()));
  for (LayerNode node = 0; node < depth.size(); ++node) {
    for (const LayerNode input : network.Inputs(node)) {
      depth[node] = std::max(depth[node], depth[input]);
    }
    const OpType type = network.layer(node).type;
    depth[node] += type == OpType::kConv2d || type == OpType::kLinear ? 1 : 0;
  }
  return *std::max_element(depth.begin(), depth.end());
}

// Without the first copy of each fork; with parameters, their gradients and momentum.
double NetworkMemory(const Workload& workload) {
  const Trace trace = Scene(workload).trace;
  Bytes bytes = CountedStorages(trace).bytes;
  for (const Op& op : trace.ops) {
    const bool forks = op.type == OpType::kFork && op.phase == Phase::kForward;
    if (forks) bytes -= trace.tensor(op.outputs.front()).size;
  }
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind == TensorKind::kParameter) bytes += tensor.size * 3;
  }
  return bytes.gib();
}

// The mean of SuperNeurons' batch over the second largest, of the printed Table 5.
double WiderOnAverage() {
  constexpr std::array<std::pair<double, double>, 6> kBatches{
      {{1792, 1408}, {224, 80}, {240, 64}, {384, 128}, {256, 80}, {176, 48}}};
  double sum = 0;
  for (const auto& [ours, next] : kBatches) sum += ours / next;
  return sum / static_cast<double>(kBatches.size());
}

// What parameters, optimizer state and reserved blocks take of the arena.
Bytes HeldThroughout(const Trace& trace, const Report& report) {
  Bytes held;
  for (const Placement& placement : report.placements) {
    if (placement.kind != PlacementKind::kAllocate) break;
    if (placement.tensor != kNoTensor) {
      const TensorKind kind = trace.tensor(placement.tensor).kind;
      if (kind != TensorKind::kParameter && kind != TensorKind::kOptimizerState) break;
    }
    held += placement.block.size;
  }
  return held;
}

// In hundredths of max(l_i), each tensor counted once; at most four times max(l_i).
Computed Floor(const Workload& workload, const std::string& allocator) {
  const Scene scene(workload);
  const Bytes fixed =
      HeldThroughout(scene.trace, scene.Run(kPreset, Bytes::Unlimited(), allocator));
  Bytes layer;
  const Liveness liveness(scene.trace);
  for (size_t i = 0; i < scene.trace.ops.size(); ++i) {
    Bytes sum;
    for (const TensorId id : liveness.Storages(static_cast<OpId>(i))) {
      const TensorKind kind = scene.trace.tensor(id).kind;
      const bool data = kind == TensorKind::kInput || kind == TensorKind::kActivation ||
                        kind == TensorKind::kGradient;
      if (data) sum += scene.trace.tensor(id).size;
    }
    layer = std::max(layer, sum);
  }
  for (int percent = 100; percent <= 400; ++percent) {
    const Bytes memory = fixed + Bytes(layer.count() * percent / 100);
    if (scene.Run(kPreset, memory, allocator).fits()) return percent / 100.0;
  }
  return std::nullopt;
}

ComputableItem MakeItem(const Workload& workload, std::string unit,
                        std::function<Computed()> compute) {
  ComputableItem item;
  item.workload = workload.Name();
  item.unit = std::move(unit);
  item.compute = [network = workload.network, compute = std::move(compute)]() -> Computed {
    if (!InZoo(network)) return std::nullopt;
    return compute();
  };
  return item;
}

// The items that only the list of printed values has.
std::optional<ComputableItem> ParseFixedItem(std::string_view text) {
  struct Fixed {
    std::string_view name;
    const char* unit;
    double (*compute)();
    bool round_down = false;
  };
  static constexpr auto kOutput = [](const char* op) {
    return Mib(OutputOf(Scene(Figure10()).trace, op));
  };
  static constexpr auto kPeak = [](const char* technique) {
    const auto steps = Profile(Figure10(), PolicyOf(technique));
    return std::pair(PeakStep(steps), steps);
  };
  static const Fixed kFixed[] = {
      {"Fig10 baseline tensors", "count",
       [] { return double(CountedStorages(Scene(Figure10()).trace).tensors); }},
      {"Fig10 baseline MB", "MB",
       [] { return Mib(CountedStorages(Scene(Figure10()).trace).bytes); }},
      {"Fig10a liveness peak MB", "MB", [] { return PeakMib("liveness"); }},
      {"Fig10a peak step", "count", [] { return double(kPeak("liveness").first + 1); }},
      {"Fig10a tensors at peak", "count",
       [] {
         const auto [peak, steps] = kPeak("liveness");
         return double(steps[peak].tensors);
       }},
      {"Fig10a sum l_f before peak MB", "MB", [] { return PeakPart(false); }},
      {"Fig10a l_b POOL5 MB", "MB", [] { return PeakPart(true); }},
      {"Fig10 CONV1 output MB", "MB", [] { return kOutput("conv1.fwd"); }},
      {"Fig10 CONV2 output MB", "MB", [] { return kOutput("conv2.fwd"); }},
      {"Fig10 CONV3 output MB", "MB", [] { return kOutput("conv3.fwd"); }},
      {"Fig10 CONV4 output MB", "MB", [] { return kOutput("conv4.fwd"); }},
      {"Fig10b offload peak MB (step 39)", "MB", [] { return PeakMib("offload"); }},
      {"Fig10b tensors at step 39", "count",
       [] { return double(Profile(Figure10(), PolicyOf("offload"))[38].tensors); }},
      {"Fig10b POOL5 after offload MB", "MB", PoolAfterOffload},
      {"Fig10c max(l_i) LRN1 MB (step 44)", "MB",
       [] { return Mib(Profile(Figure10(), PolicyOf("recompute"))[43].held); }},
      {"saving liveness %", "%", [] { return Saving("liveness"); }, true},
      {"saving offload %", "%", [] { return Saving("offload"); }, true},
      {"Tab5 \"1.8947x larger on average\"", "x", WiderOnAverage},
  };
  for (const Fixed& fixed : kFixed) {
    if (text != fixed.name) continue;
    ComputableItem item =
        MakeItem(Figure10(), fixed.unit, [compute = fixed.compute] { return compute(); });
    item.round_down = fixed.round_down;
    return item;
  }
  return std::nullopt;
}

// "speed-centric" or "speed", as the policy names it.
std::optional<std::string> ParseMode(std::string_view text) {
  TakeSuffix(text, "-centric");
  if (text == "speed") return "speed";
  if (text == "mem") return "memory";
  if (text == "cost") return "cost-aware";
  return std::nullopt;
}

std::optional<ComputableItem> ParseTableOne(std::string_view rest) {
  const bool extra = TakeSuffix(rest, ")");
  if (!extra && !TakeSuffix(rest, " peak")) return std::nullopt;
  const std::string_view separator = extra ? " extra (" : " ";
  const size_t end = rest.rfind(separator);
  if (end == std::string_view::npos) return std::nullopt;
  const auto workload = ParseNetwork(rest.substr(0, end));
  const auto mode = ParseMode(rest.substr(end + separator.size()));
  if (!workload || !mode) return std::nullopt;
  const auto compute = extra ? ExtraSteps : NeededPeak;
  return MakeItem(*workload, extra ? "count" : "MB",
                  [=, workload = *workload, mode = *mode] { return compute(workload, mode); });
}

std::optional<ComputableItem> ParseStep(std::string_view rest) {
  const bool tensors = TakeSuffix(rest, " tensors");
  if (!tensors && !TakeSuffix(rest, " MB")) return std::nullopt;
  for (const char* technique : {"liveness", "offload", "recompute"}) {
    std::string_view number = rest;
    if (!TakePrefix(number, fmt::format("{} step ", technique))) continue;
    const auto step = ParseNumber(number);
    if (!step || *step < 1 || *step > 46) return std::nullopt;
    return MakeItem(Figure10(), tensors ? "count" : "MB",
                    [=, index = static_cast<size_t>(*step - 1)]() -> Computed {
                      const StepMemory memory = Profile(Figure10(), PolicyOf(technique)).at(index);
                      return tensors ? memory.tensors : Mib(memory.held);
                    });
  }
  return std::nullopt;
}

std::optional<ComputableItem> ParseFigureTwo(std::string_view rest) {
  const size_t batch_at = rest.rfind(" B=");
  if (!TakeSuffix(rest, " GB") || batch_at == std::string_view::npos) return std::nullopt;
  auto workload = ParseNetwork(rest.substr(0, batch_at));
  const auto batch = ParseNumber(rest.substr(batch_at + 3));
  if (!workload || !batch || *batch < 1 || *batch > 65536) return std::nullopt;
  workload->batch = *batch;
  return MakeItem(*workload, "GB", [workload = *workload] { return NetworkMemory(workload); });
}

std::optional<ComputableItem> ParseFloor(std::string_view rest) {
  const size_t end = rest.rfind(' ');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view name = rest.substr(end + 1);
  if (name != "first-fit" && name != "stitched") return std::nullopt;
  const auto workload = ParseNetwork(rest.substr(0, end));
  if (!workload) return std::nullopt;
  const std::string allocator = name == "stitched" ? "stitched" : "first-fit:granularity=1KiB";
  return MakeItem(*workload, "x", [=, workload = *workload] { return Floor(workload, allocator); });
}

std::optional<ComputableItem> ParseOfNetwork(std::string_view network, const char* unit,
                                             double (*compute)(const Workload&)) {
  const auto workload = ParseNetwork(network);
  if (!workload) return std::nullopt;
  return MakeItem(*workload, unit, [=, workload = *workload] { return compute(workload); });
}

std::optional<ComputableItem> Parse(std::string_view text) {
  if (auto item = ParseFixedItem(text)) return item;
  std::string_view rest = text;
  if (TakePrefix(rest, "Tab1 ")) return ParseTableOne(rest);
  if (TakePrefix(rest, "Fig10 ")) return ParseStep(rest);
  if (TakePrefix(rest, "Fig2 ")) return ParseFigureTwo(rest);
  if (TakePrefix(rest, "Floor ")) return ParseFloor(rest);
  if (TakePrefix(rest, "layers in ")) return ParseOfNetwork(rest, "count", LayerCount);
  if (TakeSuffix(rest, " depth")) return ParseOfNetwork(rest, "count", Depth);
  if (TakeSuffix(rest, " basic layers (~1e4)")) {
    return ParseOfNetwork(rest, "count", [](const Workload& workload) {
      return static_cast<double>(Scene(workload).trace.layers.size());
    });
  }
  return std::nullopt;
}

}  // namespace

std::vector<StepMemory> StepMemories(const Trace& trace, const Report& report) {
  SPILLWAY_CHECK(report.fits());
  const Liveness liveness(trace);
  SuperNeuronsSteps plan;
  plan.Plan(trace, liveness, SuperNeuronsOffload::kNone, SuperNeuronsRecompute::kSpeed);
  std::vector<bool> counted(trace.tensors.size());  // storages
  const std::vector<bool> tensors = SuperNeuronsCounted(trace);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]) counted[Index(liveness.Root(static_cast<TensorId>(i)))] = true;
  }
  size_t count = 0;
  while (count < trace.ops.size() && trace.ops[count].phase != Phase::kUpdate) ++count;
  std::vector<StepMemory> steps(count);
  std::vector<bool> held(counted.size());
  StepMemory now;
  size_t next = 0;  // placement
  std::vector<TensorId> needs;
  for (size_t i = 0; i < count; ++i) {
    const auto op = static_cast<OpId>(i);
    needs.assign(plan.Needs(op).begin(), plan.Needs(op).end());
    for (const TensorId id : liveness.Storages(op)) {
      if (std::find(needs.begin(), needs.end(), id) == needs.end()) needs.push_back(id);
    }
    const auto look = [&] {
      Bytes needed;
      for (const TensorId id : needs) {
        if (counted[Index(id)] && held[Index(id)]) needed += trace.tensor(id).size;
      }
      steps[i].needed = std::max(steps[i].needed, needed);
      if (now.held <= steps[i].held) return;
      steps[i].held = now.held;
      steps[i].tensors = now.tensors;
    };
    look();
    for (; next < report.placements.size() && report.placements[next].op == op; ++next) {
      const Placement& placement = report.placements[next];
      const TensorId id = placement.tensor;
      if (placement.host || id == kNoTensor || !counted[Index(id)]) continue;
      const bool takes =
          placement.kind == PlacementKind::kAllocate || placement.kind == PlacementKind::kEnter;
      held[Index(id)] = takes;
      now.tensors += takes ? 1 : -1;
      now.held += takes ? placement.requested : Bytes(0) - placement.requested;
      look();
    }
  }
  return steps;
}

std::optional<ComputableItem> ParseSuperNeuronsItem(std::string_view text) {
  auto item = Parse(text);
  if (item) item->name = text;
  return item;
}

std::vector<std::string> SuperNeuronsItemsOf(std::string_view figure) {
  std::vector<std::string> items;
  if (figure == "Fig10") {
    for (const char* technique : {"liveness", "offload", "recompute"}) {
      for (int step = 1; step <= 46; ++step) {
        items.push_back(fmt::format("Fig10 {} step {} MB", technique, step));
        items.push_back(fmt::format("Fig10 {} step {} tensors", technique, step));
      }
    }
  } else if (figure == "Floor") {
    for (const char* network :
         {"AlexNet", "VGG16", "ResNet50", "ResNet101", "ResNet152", "InceptionV4", "DenseNet121"}) {
      for (const char* allocator : {"first-fit", "stitched"}) {
        items.push_back(fmt::format("Floor {} {}", network, allocator));
      }
    }
  }
  return items;
}

}  // namespace spillway
