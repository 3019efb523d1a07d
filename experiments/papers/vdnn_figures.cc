// The figures of vDNN (Rhu et al., MICRO 2016) and the claims of its text.
//
// The paper plots its figures without printing their numbers, so the items of figures are not
// judged. It prints the numbers of its claims; they follow from times or from plotted choices and
// are shown, not judged. Static policies and the baseline run in unlimited memory, like the paper's
// oracular baseline, even if they need more bytes than the GPU has. `dyn` runs in the GPU's memory.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>

#include "experiments/papers/vdnn_setup.h"
#include "traces/base/error.h"

namespace spillway::lab::vdnn {
namespace {

struct Mode {
  std::string_view name;
  const char* policy;
  std::string Name() const { return std::string(name); }
};
using Measure = Computed (*)(const Inputs&, const Mode&);

constexpr Mode kAllLean{"all(m)", "vdnn-all:algo=memory"};
constexpr Mode kConvLean{"conv(m)", "vdnn-conv:algo=memory"};
constexpr Mode kDynamic{"dyn", "vdnn-dyn"};
constexpr Mode kBaseFast{"base(p)", "network-wide"};
constexpr std::array kPolicies{kAllLean, Mode{"all(p)", "vdnn-all"}, kConvLean,
                               Mode{"conv(p)", "vdnn-conv"}, kDynamic};
constexpr std::array kModes{kPolicies[0], kPolicies[1], kPolicies[2],
                            kPolicies[3], kPolicies[4], Mode{"base(m)", "network-wide:algo=memory"},
                            kBaseFast};

std::vector<Workload> Conventional() {
  return {{"alexnet", 128}, {"overfeat", 128}, {"googlenet", 128},
          {"vgg19", 64},    {"vgg19", 128},    {"vgg19", 256}};
}
std::vector<Workload> VeryDeep() {
  return {{"vgg116", 32}, {"vgg216", 32}, {"vgg316", 32}, {"vgg416", 32}};
}

std::vector<Workload> Baselines() {
  std::vector<Workload> workloads = Conventional();
  std::ranges::copy(VeryDeep(), std::back_inserter(workloads));
  return workloads;
}

// Returns the report of a run of the mode; nullopt if it does not fit.
std::optional<Report> RunMode(const Inputs& inputs, const Mode& mode) {
  const bool dynamic = mode.name == kDynamic.name;
  Report report =
      ReportOf(inputs, mode.policy, dynamic ? inputs.device().memory : Bytes::Unlimited());
  if (!report.fits()) return std::nullopt;
  return report;
}

// --- Memory of the network-wide allocation -------------------------------------------------------

// The bytes of the baseline by their function.
struct Functions {
  Bytes weights;
  Bytes features;  // inputs of layers, with the image
  Bytes gradients;
  Bytes workspace;
};

Functions SplitOf(const Inputs& inputs) {
  Functions split;
  std::set<TensorId> seen;
  for (size_t i = 0; i < inputs.trace()->tensors.size(); ++i) {
    const TensorId root = inputs.trace()->Root(static_cast<TensorId>(i));
    if (!seen.insert(root).second) continue;
    const Tensor& tensor = inputs.trace()->tensor(root);
    if (tensor.kind == TensorKind::kParameter) split.weights += tensor.size;
    if (tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kActivation) {
      split.features += tensor.size;
    }
  }
  const Report base = ReportOf(inputs, "network-wide:algo=memory");
  SPILLWAY_CHECK(base.fits());  // memory is unlimited
  split.gradients = base.metrics.peak_requested - split.weights - split.features;
  split.workspace = FftBaselineWorkspace(*inputs.trace());
  return split;
}

// Returns the bytes of the baseline with the workspace that the paper counts, as `base ... GB`
// does.
Bytes BaseMemory(const Inputs& inputs) {
  const Functions split = SplitOf(inputs);
  return split.weights + split.features + split.gradients + split.workspace;
}

// Returns the bytes of the distinct storages of these kinds that an op reads or writes.
Bytes OperandsOf(const Trace& trace, const Op& op, std::initializer_list<TensorKind> kinds) {
  std::set<TensorId> seen;
  Bytes sum;
  for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
    for (const TensorId id : *list) {
      const Tensor& tensor = trace.tensor(trace.Root(id));
      const bool counted = std::ranges::find(kinds, tensor.kind) != kinds.end();
      if (counted && seen.insert(trace.Root(id)).second) sum += tensor.size;
    }
  }
  return sum;
}

// Returns the bytes of the layer that needs most, over the bytes of the whole allocation.
double LargestLayerShare(const Inputs& inputs) {
  const Bytes counted = FftBaselineWorkspace(*inputs.trace());  // the whole allocation's workspace
  Bytes largest;
  for (const Op& op : inputs.trace()->ops) {
    const Bytes operands =
        OperandsOf(*inputs.trace(), op,
                   {TensorKind::kInput, TensorKind::kParameter, TensorKind::kActivation,
                    TensorKind::kGradient, TensorKind::kParameterGradient, TensorKind::kScratch});
    largest = std::max(largest, operands + std::min(WorkspaceOf(inputs, op), counted));
  }
  return largest.mib() / BaseMemory(inputs).mib();
}

PaperTable FigureOne() {
  return {"Fig1",
          Names(),
          Rows(Baselines()),
          {{"Fig1 {workload} baseline MB", "MB",
            OfInputs([](const Inputs& inputs) { return BaseMemory(inputs).mib(); })},
           {"Fig1 {workload} layer %", "%",
            OfInputs([](const Inputs& inputs) { return 100 * LargestLayerShare(inputs); })}}};
}

PaperTable FigureFour() {
  PaperTable table{"Fig4", Names(), Rows(Conventional()), {}};
  const auto add = [&](const char* name, Bytes Functions::*part) {
    table.columns.push_back(
        {fmt::format("Fig4 {{workload}} {} MB", name), "MB",
         OfInputs([=](const Inputs& inputs) { return (SplitOf(inputs).*part).mib(); })});
  };
  add("weights", &Functions::weights);
  add("features", &Functions::features);
  add("gradients", &Functions::gradients);
  add("workspace", &Functions::workspace);
  return table;
}

// --- Layers of VGG-16 ----------------------------------------------------------------------------

// The forward and backward op of a layer with weights; nullptr if the layer has no weights.
struct LayerOps {
  const Op* forward = nullptr;
  const Op* backward = nullptr;
};

LayerOps FindLayer(const Trace& trace, std::string_view name) {
  LayerOps ops;
  for (const Op& op : trace.ops) {
    if (op.type != OpType::kConv2d && op.type != OpType::kLinear) continue;
    if (trace.layer(op.layer).name != name) continue;
    if (op.phase == Phase::kForward) ops.forward = &op;
    if (op.phase == Phase::kBackward) ops.backward = &op;
  }
  return ops;
}

std::vector<std::string> LayersWithWeights(const Workload& workload) {
  std::vector<std::string> names;
  const Trace trace = LowerNetwork(BuildNetwork(workload.network), {workload.batch, "vdnn", true});
  for (const Layer& layer : trace.layers) {
    if (FindLayer(trace, layer.name).forward != nullptr) names.push_back(layer.name);
  }
  return names;
}

// Returns a column's function that calls `compute(inputs, ops)` with the ops of the row's layer. It
// returns nullopt if the network has no such layer with weights.
template <typename Compute>
auto OfLayer(const Compute& compute) {
  return [=](const PaperRow& row) -> std::optional<double> {
    const Inputs inputs(row.asked);
    const LayerOps ops = FindLayer(*inputs.trace(), row.layer);
    if (ops.forward == nullptr || ops.backward == nullptr) return std::nullopt;
    return compute(inputs, ops);
  };
}

PaperTable OfLayers(const char* name, int64_t batch, std::vector<PaperColumn> columns) {
  const Workload vgg{"vgg19", batch};
  return {name, Names(), Rows({vgg}, {0}, LayersWithWeights(vgg)), std::move(columns)};
}

PaperTable FigureFive() {
  return OfLayers(
      "Fig5", 256,
      {{"Fig5 {workload} {layer} features MB", "MB",
        OfLayer([](const Inputs& inputs, const LayerOps& ops) {
          return OperandsOf(*inputs.trace(), *ops.forward,
                            {TensorKind::kInput, TensorKind::kActivation})
              .mib();
        })},
       {"Fig5 {workload} {layer} workspace MB", "MB",
        OfLayer([](const Inputs& inputs, const LayerOps& ops) {
          return WorkspaceOf(inputs, *ops.forward).mib();
        })},
       {"Fig5 {workload} {layer} weights MB", "MB",
        OfLayer([](const Inputs& inputs, const LayerOps& ops) {
          return OperandsOf(*inputs.trace(), *ops.forward, {TensorKind::kParameter}).mib();
        })}});
}

// Returns the interval from the start of an op's first kernel to the end of its last.
Interval IntervalOf(const Inputs& inputs, const Report& report, const Op& op) {
  Interval whole{{}, Duration::Max(), {}};
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.kind != CommandKind::kKernel || &inputs.trace()->op(entry.op) != &op) continue;
    whole.start = std::min(whole.start, entry.interval.start);
    whole.end = std::max(whole.end, entry.interval.end);
  }
  return whole;
}

std::vector<PaperColumn> ReuseColumns() {
  const auto of = [](auto measure) {
    return OfLayer([=](const Inputs& inputs, const LayerOps& ops) {
      const Report report = ReportOf(inputs, kBaseFast.policy);
      const Interval forward = IntervalOf(inputs, report, *ops.forward);
      return measure(forward, IntervalOf(inputs, report, *ops.backward)).milliseconds();
    });
  };
  using I = const Interval&;
  return {{"Fig6 {workload} {layer} reuse ms", "ms",
           of([](I forward, I backward) { return backward.start - forward.end; })},
          {"Fig6 {workload} {layer} forward ms", "ms",
           of([](I forward, I) { return forward.end - forward.start; })},
          {"Fig6 {workload} {layer} backward ms", "ms",
           of([](I, I backward) { return backward.end - backward.start; })}};
}

// The table has all layers of VGG-16 and the first layer of AlexNet, which the paper's text names.
std::vector<PaperTable> FigureSix() {
  const std::vector<PaperColumn> columns = ReuseColumns();
  return {OfLayers("Fig6", 64, columns),
          {"Fig6", Names(), Rows({{"alexnet", 128}}, {0}, {"conv1"}), {columns.front()}}};
}

// The columns are the least traffic of a layer's fastest kernels over the kernels' time.
PaperTable FigureThirteen() {
  const auto of = [](const Op* LayerOps::*phase) {
    return OfLayer([=](const Inputs& inputs, const LayerOps& ops) {
      const Op& op = *(ops.*phase);
      Duration time;
      for (size_t slot = 0; slot < op.slots.size(); ++slot) {
        time += inputs.cost()->Kernels(op, slot, op.batch).front().time;
      }
      return static_cast<double>(op.traffic().count()) / 1e9 / time.seconds();
    });
  };
  return OfLayers("Fig13", 256,
                  {{"Fig13 {workload} {layer} forward GB/s", "GB/s", of(&LayerOps::forward)},
                   {"Fig13 {workload} {layer} backward GB/s", "GB/s", of(&LayerOps::backward)}});
}

// --- Policies ------------------------------------------------------------------------------------

// Returns a metric of a run of the mode in MiB.
Computed Memory(const Inputs& inputs, const Mode& mode, Bytes Metrics::*metric) {
  if (mode.name == kBaseFast.name) return BaseMemory(inputs).mib();
  const auto report = RunMode(inputs, mode);
  return report ? Computed((report->metrics.*metric).mib()) : std::nullopt;
}
Computed MostMemory(const Inputs& inputs, const Mode& mode) {
  return Memory(inputs, mode, &Metrics::peak_requested);
}
Computed AverageMemory(const Inputs& inputs, const Mode& mode) {
  return Memory(inputs, mode, &Metrics::average_requested);
}

// Returns the saved memory in percent of the baseline.
template <Measure kMemory>
Computed Saved(const Inputs& inputs, const Mode& mode) {
  const Computed memory = kMemory(inputs, mode);
  return memory ? Computed(100 * (1 - *memory / BaseMemory(inputs).mib())) : std::nullopt;
}

// Returns the time before the classifier begins and after it ends, which is the time of the layers
// that the policies treat differently.
Duration FeatureExtraction(const Inputs& inputs, const Report& report) {
  Duration begin = Duration::Max();
  Duration end;
  for (const TimelineEntry& entry : report.timeline) {
    const Op& op = inputs.trace()->op(entry.op);
    if (entry.kind != CommandKind::kKernel || op.type != OpType::kLinear) continue;
    if (op.phase == Phase::kForward) begin = std::min(begin, entry.interval.start);
    if (op.phase == Phase::kBackward) end = std::max(end, entry.interval.end);
  }
  return begin + (report.metrics.iteration - end);
}

// Returns the speed of feature extraction over the speed of the baseline with its fastest
// algorithms.
Computed Performance(const Inputs& inputs, const Mode& mode) {
  const auto report = RunMode(inputs, mode);
  if (!report) return std::nullopt;
  return FeatureExtraction(inputs, ReportOf(inputs, kBaseFast.policy)).seconds() /
         FeatureExtraction(inputs, *report).seconds();
}

Computed Lost(const Inputs& inputs, const Mode& mode) {
  const Computed performance = Performance(inputs, mode);
  return performance ? Computed(100 * (1 - *performance)) : std::nullopt;
}

PaperTable ConventionalTable(const char* name, std::span<const Mode> modes,
                             const std::vector<ModeColumn<Mode>>& columns) {
  return {name, Names(), Rows(Conventional()), ForModes(modes, columns)};
}

PaperTable FigureEleven() {
  return ConventionalTable(
      "Fig11", kModes,
      {{"Fig11 {workload} {mode} max MB", "MB", OfInputs(MostMemory)},
       {"Fig11 {workload} {mode} avg MB", "MB", OfInputs(AverageMemory)},
       {"Fig11 {workload} {mode} saved %", "%", OfInputs(Saved<AverageMemory>)}});
}

Computed Offloaded(const Inputs& inputs, const Mode& mode) {
  return Memory(inputs, mode, &Metrics::offloaded);
}

PaperTable FigureTwelve() {
  return ConventionalTable("Fig12", std::array{kAllLean, kConvLean},
                           {{"Fig12 {workload} {mode} offloaded MB", "MB", OfInputs(Offloaded)}});
}

// Returns 1 if the GPU has the memory that the mode takes, otherwise 0.
Computed Fits(const Inputs& inputs, const Mode& mode) {
  const Computed most = MostMemory(inputs, mode);
  return most ? Computed(*most <= inputs.device().memory.mib() ? 1 : 0) : std::nullopt;
}

PaperTable FigureFourteen() {
  return ConventionalTable("Fig14", kModes,
                           {{"Fig14 {workload} {mode} performance", "x", OfInputs(Performance)},
                            {"Fig14 {workload} {mode} fits", "1", OfInputs(Fits)}});
}

PaperTable FigureFifteen() {
  std::vector<Workload> workloads = VeryDeep();
  workloads.insert(workloads.begin(), Workload{"vgg19", 32});
  const auto dynamic = [](Bytes Metrics::*bytes) {
    return OfInputs([=](const Inputs& inputs) -> Computed {
      const auto report = RunMode(inputs, kDynamic);
      return report ? Computed(InUnits(report->metrics.*bytes)) : std::nullopt;
    });
  };
  return {"Fig15",
          Names(),
          Rows(workloads),
          {{"Fig15 {workload} baseline GB", "GB",
            OfInputs([](const Inputs& inputs) { return InUnits(BaseMemory(inputs)); })},
           {"Fig15 {workload} dyn GPU GB", "GB", dynamic(&Metrics::peak_requested)},
           {"Fig15 {workload} dyn CPU GB", "GB", dynamic(&Metrics::pinned_peak)}}};
}

// --- Page migration and claims -------------------------------------------------------------------

// The column is the time to offload and prefetch all inputs at the row's bandwidth in MB/s, over
// the time of the baseline's iteration. Migration of single pages reaches 80 to 200 MB/s, DMA over
// the device's link 12800 MB/s.
PaperTable Migration() {
  const auto over_iteration = [](const PaperRow& row) {
    const Inputs inputs(row.asked);
    const Report all = ReportOf(inputs, kAllLean.policy);
    const auto moved =
        static_cast<double>((all.metrics.offloaded + all.metrics.prefetched).count());
    const Duration iteration = ReportOf(inputs, kBaseFast.policy).metrics.iteration;
    return moved / (row.number * 1e6) / iteration.seconds();
  };
  return {"Migration",
          Names(),
          Rows(Conventional(), {80, 200, 12800}),
          {{"Migration {workload} at {number} MB/s", "x", over_iteration}}};
}

using Fold = double (*)(const std::vector<double>&);
double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
double Least(const std::vector<double>& values) { return std::ranges::min(values); }
double Most(const std::vector<double>& values) { return std::ranges::max(values); }

// Returns the row's case with each of the workloads.
std::vector<Case> CasesOf(const std::vector<Workload>& workloads, const PaperRow& row) {
  std::vector<Case> cases(workloads.size(), row.asked);
  for (size_t i = 0; i < cases.size(); ++i) cases[i].workload = workloads[i].Name();
  return cases;
}

// Returns a column that folds the measure over the six networks of Figs. 11 and 14.
ModeColumn<Mode> Claim(const char* pattern, Measure measure, Fold fold) {
  return {pattern, "%", [=](const PaperRow& row, const Mode& mode) -> Computed {
            std::vector<double> values;
            for (const Case& asked : CasesOf(Conventional(), row)) {
              const Computed value = measure(Inputs(asked), mode);
              if (!value) return std::nullopt;
              values.push_back(*value);
            }
            return fold(values);
          }};
}

// Returns a column that folds, over the ten networks of Fig. 1, the percentage of the baseline's
// allocation that is unused while the layer that needs most runs.
PaperColumn UnusedClaim(const char* pattern, Fold fold) {
  return {pattern, "%", [=](const PaperRow& row) {
            std::vector<double> values;
            for (const Case& asked : CasesOf(Baselines(), row)) {
              values.push_back(100 * (1 - LargestLayerShare(Inputs(asked))));
            }
            return fold(values);
          }};
}

PaperTable Claims() {
  PaperTable table{
      "Claims",
      Names(),
      {{}},
      ForModes<Mode>(
          kPolicies,
          {Claim("mean saving of max {mode} %", Saved<MostMemory>, Mean),
           Claim("mean saving of average {mode} %", Saved<AverageMemory>, Mean),
           Claim("mean loss {mode} %", Lost, Mean), Claim("worst loss {mode} %", Lost, Most)})};
  table.columns.push_back(UnusedClaim("least unused by a layer %", Least));
  table.columns.push_back(UnusedClaim("most unused by a layer %", Most));
  return table;
}

}  // namespace

std::vector<PaperTable> Figures() {
  std::vector<PaperTable> tables = FigureSix();
  for (const PaperTable& table :
       {FigureOne(), FigureFour(), FigureFive(), FigureEleven(), FigureTwelve(), FigureThirteen(),
        FigureFourteen(), FigureFifteen(), Migration(), Claims()}) {
    tables.push_back(table);
  }
  return tables;
}

}  // namespace spillway::lab::vdnn
