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

namespace spillway::lab {
namespace {

using namespace superneurons;

Workload Figure10() { return {"alexnet-227", 200}; }
constexpr std::array kResidual{"resnet50@227", "resnet101@227"};

// --- Runs ---------------------------------------------------------------------------------------

// The counted tensors on the device during one step of a run.
struct StepMemory {
  Bytes held;       // bytes at the moment that holds most
  int tensors = 0;  // tensors at that moment
  Bytes needed;     // most bytes of the tensors that the step names or that recomputing them reads
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

std::vector<StepMemory> Profile(const Inputs& inputs, const std::string& policy) {
  return StepMemories(*inputs.trace(), ReportOf(inputs, policy));
}

size_t PeakStep(const std::vector<StepMemory>& steps) {
  return static_cast<size_t>(std::ranges::max_element(steps, {}, &StepMemory::held) -
                             steps.begin());
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

// Returns the bytes of the output of a layer in MiB.
double OutputOf(const Inputs& inputs, const std::string& layer) {
  for (const Op& op : inputs.trace()->ops) {
    if (op.name == layer + ".fwd") return inputs.trace()->tensor(op.outputs.front()).size.mib();
  }
  throw InputError("no layer " + layer);
}

std::vector<StepMemory> StepsOf(const Inputs& inputs, const char* technique) {
  return Profile(inputs, PolicyOf(technique));
}

StepMemory PeakOf(const Inputs& inputs, const char* technique) {
  const auto steps = StepsOf(inputs, technique);
  return steps[PeakStep(steps)];
}

double PeakMib(const Inputs& inputs, const char* technique) {
  return PeakOf(inputs, technique).held.mib();
}

double BaselineMib(const Inputs& inputs) { return CountedStorages(*inputs.trace()).bytes.mib(); }

// Returns 1 - peak / baseline in percent.
double Saving(const Inputs& inputs, const char* technique) {
  return 100 * (1 - PeakMib(inputs, technique) / BaselineMib(inputs));
}

// Returns, for the peak step of the liveness run, the MiB that the step names if `own`, otherwise
// the MiB that other steps hold.
double PeakPart(const Inputs& inputs, bool own) {
  const auto steps = StepsOf(inputs, "liveness");
  const size_t peak = PeakStep(steps);
  const Bytes operands = OperandBytes(*inputs.trace(), inputs.trace()->ops[peak]);
  return (own ? operands : steps[peak].held - operands).mib();
}

// Returns the sum that the paper prints: the liveness peak without the outputs of CONV1 to CONV3.
double PoolAfterOffload(const Inputs& inputs) {
  double sum = PeakMib(inputs, "liveness");
  for (const char* conv : {"conv1", "conv2", "conv3"}) sum -= OutputOf(inputs, conv);
  return sum;
}

// Returns the most MiB that a step needs if all other tensors have been offloaded.
double NeededPeak(const Inputs& inputs, const std::string& mode) {
  Bytes peak;
  for (const StepMemory& step : Profile(inputs, PolicyOf("recompute", mode))) {
    peak = std::max(peak, step.needed);
  }
  return peak.mib();
}

double ExtraSteps(const Inputs& inputs, const std::string& mode) {
  return static_cast<double>(ReportOf(inputs, PolicyOf("recompute", mode)).metrics.recomputed_ops);
}

double LayerCount(const Inputs& inputs) {
  return static_cast<double>(inputs.trace()->layers.size());
}

// Returns the number of convolutions and linear layers on the longest path.
double Depth(const PaperRow& row) {
  const Network network = BuildNetwork(row.workload.network);
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
Computed Floor(const Inputs& inputs, const std::string& allocator) {
  const Bytes fixed = HeldThroughout(
      *inputs.trace(), ReportOf(inputs, std::string(kPaper), Bytes::Unlimited(), allocator));
  Bytes layer;
  const Liveness liveness(*inputs.trace());
  for (size_t i = 0; i < inputs.trace()->ops.size(); ++i) {
    Bytes sum;
    for (const TensorId id : liveness.Storages(static_cast<OpId>(i))) {
      const TensorKind kind = inputs.trace()->tensor(id).kind;
      const bool data = kind == TensorKind::kInput || kind == TensorKind::kActivation ||
                        kind == TensorKind::kGradient;
      if (data) sum += inputs.trace()->tensor(id).size;
    }
    layer = std::max(layer, sum);
  }
  for (int percent = 100; percent <= 400; ++percent) {
    const Bytes memory = fixed + Bytes(layer.count() * percent / 100);
    if (ReportOf(inputs, std::string(kPaper), memory, allocator).fits()) return percent / 100.0;
  }
  return std::nullopt;
}

// --- Tables -------------------------------------------------------------------------------------

// Returns the numbers of the text and Fig. 10 about AlexNet(200), and of the text about Table 5.
PaperTable TextItems(const PaperValues& printed) {
  const auto of_step = [](const char* technique, size_t step, auto part) {
    return OfInputs(
        [=](const Inputs& inputs) { return part(StepsOf(inputs, technique).at(step - 1)); });
  };
  const auto tensors = [](const StepMemory& step) { return step.tensors; };
  const auto held = [](const StepMemory& step) { return step.held.mib(); };
  return {"Text",
          Names(),
          {{Figure10()}},
          {{"Fig10 baseline tensors", "count",
            OfInputs([](const Inputs& i) { return CountedStorages(*i.trace()).tensors; })},
           {"Fig10 baseline MB", "MB", OfInputs(BaselineMib)},
           {"Fig10a liveness peak MB", "MB", OfInputs(PeakMib, "liveness")},
           {"Fig10a peak step", "count",
            OfInputs([](const Inputs& i) { return PeakStep(StepsOf(i, "liveness")) + 1; })},
           {"Fig10a tensors at peak", "count",
            OfInputs([](const Inputs& i) { return PeakOf(i, "liveness").tensors; })},
           {"Fig10a sum l_f before peak MB", "MB", OfInputs(PeakPart, false)},
           {"Fig10a l_b POOL5 MB", "MB", OfInputs(PeakPart, true)},
           {"Fig10 CONV1 output MB", "MB", OfInputs(OutputOf, "conv1")},
           {"Fig10 CONV2 output MB", "MB", OfInputs(OutputOf, "conv2")},
           {"Fig10 CONV3 output MB", "MB", OfInputs(OutputOf, "conv3")},
           {"Fig10 CONV4 output MB", "MB", OfInputs(OutputOf, "conv4")},
           {"Fig10b offload peak MB (step 39)", "MB", OfInputs(PeakMib, "offload")},
           {"Fig10b tensors at step 39", "count", of_step("offload", 39, tensors)},
           {"Fig10b POOL5 after offload MB", "MB", OfInputs(PoolAfterOffload)},
           {"Fig10c max(l_i) LRN1 MB (step 44)", "MB", of_step("recompute", 44, held)},
           {"saving liveness %", "%", OfInputs(Saving, "liveness"), true},
           {"saving offload %", "%", OfInputs(Saving, "offload"), true},
           {"Tab5 \"1.8947x larger on average\"", "x",
            [average = WiderOnAverage(printed)](const PaperRow&) { return average; }}},
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
                             OfInputs(ExtraSteps, policy)});
      of->columns.push_back({fmt::format("Tab1 {{workload}} {}{} peak", mode, centric), "MB",
                             OfInputs(NeededPeak, policy)});
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
      return StepsOf(Inputs(row.asked), technique).at(static_cast<size_t>(row.step) - 1);
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
          {{"Floor {workload} first-fit", "x", OfInputs(Floor, kPool)},
           {"Floor {workload} stitched", "x", OfInputs(Floor, "stitched")}}};
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
                  OfInputs([](const Inputs& i) { return LayerCount(i) + 1; })}}),
          table({{{"resnet(6,32,788,6)", 1}}},
                {{"{workload} depth", "count", OfRow(Depth)},
                 {"{workload} basic layers (~1e4)", "count", OfInputs(LayerCount)}})};
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

}  // namespace spillway::lab
