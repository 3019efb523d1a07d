#include "experiments/reproduce/superneurons.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "experiments/reproduce/superneurons_setup.h"
#include "experiments/reproduce/superneurons_speed.h"
#include "policies/superneurons_steps.h"
#include "traces/base/error.h"
#include "traces/liveness.h"
#include "traces/lowering/graph.h"

namespace spillway {
namespace {

using namespace superneurons;

double Mib(Bytes bytes) { return bytes.mib(); }

// --- Runs ---------------------------------------------------------------------------------------

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

std::optional<ComputableItem> ParseFloor(std::string_view rest) {
  const std::string_view name = TakeLastWord(rest);
  if (name != "first-fit" && name != "stitched") return std::nullopt;
  const auto workload = ParseNetwork(rest);
  if (!workload) return std::nullopt;
  const std::string allocator = name == "stitched" ? "stitched" : kPool;
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
  if (auto item = ParseSuperNeuronsSpeedItem(text)) return item;
  std::string_view rest = text;
  if (TakePrefix(rest, "Tab1 ")) return ParseTableOne(rest);
  if (TakePrefix(rest, "Fig10 ")) return ParseStep(rest);
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
  std::vector<std::string> items = SuperNeuronsSpeedItemsOf(figure);
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
