// The memory of SuperNeurons (Wang et al., PPoPP 2018): Table 1, Fig. 10, and numbers of its text.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "experiments/papers/superneurons_setup.h"
#include "policies/parts/superneurons_steps.h"
#include "traces/base/error.h"
#include "traces/liveness.h"
#include "traces/lowering/graph.h"

namespace spillway {
namespace {

using namespace superneurons;

Workload Figure10() { return {"alexnet-227", 200}; }
constexpr std::array kResidual{"resnet50@227", "resnet101@227"};

// --- Runs ---------------------------------------------------------------------------------------

// The counted tensors on the device during one step of a run.
struct StepMemory {
  Bytes held;       // bytes at the moment that holds most
  int tensors = 0;  // tensors at that moment
  Bytes needed;     // most bytes of the tensors that the step names or that rebuilding them reads
};

// Returns an entry for each forward and backward op, in the order of the trace. REQUIRES: the
// report fits.
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
  size_t next = 0;  // index of the next placement
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
      if (!placement.on_device() || id == kNoTensor || !counted[Index(id)]) continue;
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

// Returns the policy of a technique of the paper: "liveness", "offload" with liveness, or
// "recompute" with both. Tensors are offloaded at once and nothing is cached.
std::string PolicyOf(std::string_view technique, std::string_view recompute = "cost-aware") {
  const bool offloads = technique != "liveness";
  return fmt::format("superneurons:offload={},cache=none,recompute={},workspace=none",
                     offloads ? "conv" : "none", technique == "recompute" ? recompute : "none");
}

std::vector<StepMemory> Profile(const Workload& workload, const std::string& policy) {
  const Scene scene = SceneOf(workload);
  return StepMemories(scene.trace, scene.Run(policy));
}

size_t PeakStep(const std::vector<StepMemory>& steps) {
  const auto less = [](const StepMemory& a, const StepMemory& b) { return a.held < b.held; };
  return static_cast<size_t>(std::max_element(steps.begin(), steps.end(), less) - steps.begin());
}

// Returns the bytes of the distinct counted storages that an op names.
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

// Returns the bytes of the output of a layer of AlexNet(200) in MiB.
double OutputOf(const std::string& layer) {
  const Trace trace = SceneOf(Figure10()).trace;
  for (const Op& op : trace.ops) {
    if (op.name == layer + ".fwd") return trace.tensor(op.outputs.front()).size.mib();
  }
  throw InputError("no layer " + layer);
}

// Returns the steps of AlexNet(200).
std::vector<StepMemory> StepsOf(const char* technique) {
  return Profile(Figure10(), PolicyOf(technique));
}

double PeakMib(const char* technique) {
  const auto steps = StepsOf(technique);
  return steps[PeakStep(steps)].held.mib();
}

Total Baseline() { return CountedStorages(SceneOf(Figure10()).trace); }

// Returns 1 - peak / baseline in percent.
double Saving(const char* technique) {
  return 100 * (1 - PeakMib(technique) / Baseline().bytes.mib());
}

// Returns, for the peak step of the liveness run, the MiB that the step names if `own`, otherwise
// the MiB that other steps hold.
double PeakPart(bool own) {
  const Scene scene = SceneOf(Figure10());
  const auto steps = StepMemories(scene.trace, scene.Run(PolicyOf("liveness")));
  const size_t peak = PeakStep(steps);
  const Bytes operands = OperandBytes(scene.trace, scene.trace.ops[peak]);
  return (own ? operands : steps[peak].held - operands).mib();
}

// Returns the sum that the paper prints: the liveness peak without the outputs of CONV1 to CONV3.
double PoolAfterOffload() {
  double sum = PeakMib("liveness");
  for (const char* conv : {"conv1", "conv2", "conv3"}) sum -= OutputOf(conv);
  return sum;
}

// Returns the most MiB that a step needs if all other tensors have been offloaded.
double NeededPeak(const Workload& workload, const std::string& mode) {
  Bytes peak;
  for (const StepMemory& step : Profile(workload, PolicyOf("recompute", mode))) {
    peak = std::max(peak, step.needed);
  }
  return peak.mib();
}

double ExtraSteps(const Workload& workload, const std::string& mode) {
  return static_cast<double>(
      SceneOf(workload).Run(PolicyOf("recompute", mode)).metrics.recomputed_ops);
}

double LayerCount(const Workload& workload) {
  return static_cast<double>(SceneOf(workload).trace.layers.size());
}

// Returns the number of convolutions and linear layers on the longest path.
double Depth(const Workload& workload) {
  const Network network = BuildNetwork(workload.network);
  std::vector<int> depth(network.size());
  for (LayerNode node = 0; node < depth.size(); ++node) {
    for (const LayerNode input : network.Inputs(node)) {
      depth[node] = std::max(depth[node], depth[input]);
    }
    const OpType type = network.layer(node).type;
    depth[node] += type == OpType::kConv2d || type == OpType::kLinear ? 1 : 0;
  }
  return *std::max_element(depth.begin(), depth.end());
}

// Returns the mean, over the printed Table 5, of SuperNeurons' batch over the second largest batch.
Computed WiderOnAverage(const PaperValues& printed) {
  double sum = 0;
  for (const char* network : kNetworks) {
    double ours = 0, next = 0;
    for (const Framework& framework : kFrameworks) {
      const int64_t batch = PrintedBatch(printed, network, framework).value_or(0);
      double& largest = framework.policy == kPaper ? ours : next;
      largest = std::max(largest, static_cast<double>(batch));
    }
    sum += ours / next;
  }
  return sum / static_cast<double>(kNetworks.size());
}

// Returns the bytes of the arena that parameters, optimizer state and reserved blocks take.
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

// Returns the least memory without parameters that fits, as a multiple of max(l_i) in hundredths;
// nullopt if four times max(l_i) does not fit. Each tensor of a layer counts once.
Computed Floor(const Workload& workload, const std::string& allocator) {
  const Scene scene = SceneOf(workload);
  const Bytes fixed =
      HeldThroughout(scene.trace, scene.Run(std::string(kPaper), Bytes::Unlimited(), allocator));
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
    if (scene.Run(std::string(kPaper), memory, allocator).fits()) return percent / 100.0;
  }
  return std::nullopt;
}

// --- Tables -------------------------------------------------------------------------------------

// Returns the numbers of the text and Fig. 10 about AlexNet(200), and of the text about Table 5.
PaperTable TextItems(const PaperValues& printed) {
  const auto of = [](auto compute) { return [=](const PaperRow&) { return compute(); }; };
  const auto output = [&](const char* layer) { return of([=] { return OutputOf(layer); }); };
  const auto peak = [&](const char* technique) { return of([=] { return PeakMib(technique); }); };
  const auto saving = [&](const char* technique) { return of([=] { return Saving(technique); }); };
  const auto peak_step = [] { return PeakStep(StepsOf("liveness")) + 1; };
  return {
      "Text",
      Names(),
      {{Figure10()}},
      {{"Fig10 baseline tensors", "count", of([] { return Baseline().tensors; })},
       {"Fig10 baseline MB", "MB", of([] { return Baseline().bytes.mib(); })},
       {"Fig10a liveness peak MB", "MB", peak("liveness")},
       {"Fig10a peak step", "count", of(peak_step)},
       {"Fig10a tensors at peak", "count",
        of([=] { return StepsOf("liveness")[peak_step() - 1].tensors; })},
       {"Fig10a sum l_f before peak MB", "MB", of([] { return PeakPart(false); })},
       {"Fig10a l_b POOL5 MB", "MB", of([] { return PeakPart(true); })},
       {"Fig10 CONV1 output MB", "MB", output("conv1")},
       {"Fig10 CONV2 output MB", "MB", output("conv2")},
       {"Fig10 CONV3 output MB", "MB", output("conv3")},
       {"Fig10 CONV4 output MB", "MB", output("conv4")},
       {"Fig10b offload peak MB (step 39)", "MB", peak("offload")},
       {"Fig10b tensors at step 39", "count", of([] { return StepsOf("offload")[38].tensors; })},
       {"Fig10b POOL5 after offload MB", "MB", of(PoolAfterOffload)},
       {"Fig10c max(l_i) LRN1 MB (step 44)", "MB",
        of([] { return StepsOf("recompute")[43].held.mib(); })},
       {"saving liveness %", "%", saving("liveness"), true},
       {"saving offload %", "%", saving("offload"), true},
       {"Tab5 \"1.8947x larger on average\"", "x",
        of([average = WiderOnAverage(printed)] { return average; })}},
      PaperRequest::kPaperName};
}

// Returns the steps that are run again and the most bytes that a step needs. The paper's text has
// shorter names of the strategies, which are the columns of a second table without rows.
std::vector<PaperTable> TableOne() {
  PaperTable table{"Tab1", Names(), RowsOf(Names(), kResidual), {}};
  table.rows.insert(table.rows.begin(), {Figure10()});
  PaperTable shorter{"", Names(), {}, {}};
  for (const auto& [mode, policy] :
       {std::pair{"speed", "speed"}, {"mem", "memory"}, {"cost", "cost-aware"}}) {
    for (PaperTable* of : {&table, &shorter}) {
      const char* centric = of == &table ? "-centric" : "";
      of->columns.push_back({fmt::format("Tab1 {{workload}} extra ({}{})", mode, centric), "count",
                             OfWorkload(ExtraSteps, policy)});
      of->columns.push_back({fmt::format("Tab1 {{workload}} {}{} peak", mode, centric), "MB",
                             OfWorkload(NeededPeak, policy)});
    }
  }
  return {table, shorter};
}

// Returns the bytes and tensors that are held at each step of AlexNet(200). Steps count from 1,
// first forward and then backward.
std::vector<PaperTable> FigureTen() {
  constexpr int64_t kSteps = 46;
  const auto has_step = [](const PaperRow& row) { return row.step <= kSteps; };
  std::vector<PaperTable> tables;
  for (const char* technique : {"liveness", "offload", "recompute"}) {
    const auto memory = [=](const PaperRow& row) {
      return StepsOf(technique).at(static_cast<size_t>(row.step) - 1);
    };
    const std::string step = fmt::format("Fig10 {} step {{step}} ", technique);
    PaperTable& table = tables.emplace_back(
        PaperTable{"Fig10",
                   Names(),
                   {},
                   {{step + "MB", "MB", [=](auto& row) { return memory(row).held.mib(); }, false,
                     "", has_step},
                    {step + "tensors", "count", [=](auto& row) { return memory(row).tensors; },
                     false, "", has_step}}});
    for (int64_t i = 1; i <= kSteps; ++i) {
      table.rows.push_back({.workload = Figure10(), .step = i});
    }
  }
  return tables;
}

// Returns the least memory in which a run with all techniques fits, as a multiple of max(l_i). The
// parameters, their gradients and optimizer state do not count.
PaperTable FloorTable() {
  constexpr std::array kShown{"alexnet-227",   "vgg16@227",    "resnet50@227", "resnet101@227",
                              "resnet152@227", "inception-v4", "densenet121"};
  return {"Floor",
          Names(),
          RowsOf(Names(), kShown),
          {{"Floor {workload} first-fit", "x", OfWorkload(Floor, kPool)},
           {"Floor {workload} stitched", "x", OfWorkload(Floor, "stitched")}}};
}

// Returns the numbers of layers of the graph and on its longest path. The first table counts the
// second data layer of the released code, too.
std::vector<PaperTable> LayerTables() {
  const auto table = [](std::vector<PaperRow> rows, std::vector<PaperColumn> columns) {
    return PaperTable{"Text", Names(), std::move(rows), std::move(columns),
                      PaperRequest::kPaperName};
  };
  return {table({{{"resnet152@227", 32}}, {{"inception-v4", 32}}},
                {{"layers in {workload}", "count",
                  [](const PaperRow& row) { return LayerCount(row.workload) + 1; }}}),
          table({{{"resnet(6,32,788,6)", 1}}},
                {{"{workload} depth", "count", OfWorkload(Depth)},
                 {"{workload} basic layers (~1e4)", "count", OfWorkload(LayerCount)}})};
}

}  // namespace

std::vector<PaperTable> SuperNeuronsTables(const PaperValues& printed) {
  std::vector<PaperTable> tables = TableOne();
  for (const auto& more : {std::vector{TextItems(printed), FloorTable()}, FigureTen(),
                           LayerTables(), SpeedTables(printed), LimitTables(printed)}) {
    tables.insert(tables.end(), more.begin(), more.end());
  }
  for (PaperTable& table : tables) table.preset = kPaper;
  return tables;
}

}  // namespace spillway
