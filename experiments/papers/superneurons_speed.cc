// The tables and figures of SuperNeurons (Wang et al., PPoPP 2018) that are about time, copies and
// workspaces: Tables 2 and 3, Figs. 2, 8 and 11 to 14, and the pools of section 3.3.2.
//
// The model of a K40c with 12 GiB gives times and algorithms, in Fig. 14 the model of a TITAN Xp.
// The paper names the K40 for its Tables 4 and 5 only, and nobody here has measured one, so all
// items are shown, not judged. The pool is first fit of 1 KiB unless an item says otherwise.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "experiments/papers/superneurons_setup.h"
#include "policies/parts/superneurons_steps.h"
#include "traces/liveness.h"

namespace spillway::lab::superneurons {
namespace {

// --- Runs ---------------------------------------------------------------------------------------

// Liveness alone: nothing is offloaded or recomputed.
constexpr const char* kLiveness = "superneurons:offload=none,recompute=none";
// All techniques, offloading outputs of convolutions as the paper does, with and without the cache.
constexpr const char* kCached = "superneurons:offload=conv";
constexpr const char* kUncached = "superneurons:offload=conv,cache=none";

Report RunOnGpu(const Inputs& inputs, const std::string& policy,
                const std::string& allocator = kPool) {
  return ReportOf(inputs, policy, inputs.device().memory, allocator);
}

// Returns images per second; nullopt if the run does not fit.
Computed Speed(const Inputs& inputs, const Report& report) {
  if (!report.fits()) return std::nullopt;
  return static_cast<double>(inputs.trace()->batch) / report.metrics.iteration.seconds();
}

Computed Ratio(Computed a, Computed b) { return a && b ? std::optional(*a / *b) : std::nullopt; }

// --- Tables 2 and 3 -----------------------------------------------------------------------------

Computed PoolSpeed(const Inputs& inputs, const std::string& allocator) {
  return Speed(inputs, RunOnGpu(inputs, kLiveness, allocator));
}

// Returns images per second under liveness, with cudaMalloc and cudaFree and with the pool.
// `overhead` is the percentage of the time with cudaMalloc that the pool saves.
std::vector<PaperTable> TableTwo() {
  const PaperNames names = Names(128, 16);
  const auto gain = [](const Inputs& inputs) {
    return Ratio(PoolSpeed(inputs, kPool), PoolSpeed(inputs, "native"));
  };
  const auto overhead = [=](const Inputs& inputs) -> Computed {
    const Computed faster = gain(inputs);
    return faster ? std::optional(100 * (1 - 1 / *faster)) : std::nullopt;
  };
  return {{"Tab2",
           names,
           RowsOf(names, kNetworks),
           {{"Tab2 {workload} CUDA", "img/s", OfInputs(PoolSpeed, "native")},
            {"Tab2 {workload} Ours", "img/s", OfInputs(PoolSpeed, kPool)},
            {"Tab2 {workload} speedup", "x", OfInputs(gain)}}},
          {"Tab2",
           names,
           {{{"resnet50@227", 16}}},
           {{"Tab2 {workload} overhead %", "%", OfInputs(overhead)}}}};
}

// Returns the bytes copied in both directions, in 10^9 bytes; nullopt if the run does not fit.
Computed Copied(const Inputs& inputs, const char* policy) {
  const Report report = RunOnGpu(inputs, policy);
  if (!report.fits()) return std::nullopt;
  return static_cast<double>((report.metrics.offloaded + report.metrics.prefetched).count()) / 1e9;
}

PaperTable TableThree() {
  std::vector<Workload> alexnet;
  for (const int batch : {256, 384, 512, 640, 896, 1024}) alexnet.push_back({"alexnet-227", batch});
  return {"Tab3",
          Names(),
          Rows(alexnet),
          {{"Tab3 {workload} without GB", "GB", OfInputs(Copied, kUncached)},
           {"Tab3 {workload} cache GB", "GB", OfInputs(Copied, kCached)}}};
}

// --- Figs. 2 and 13: the memory of whole networks -----------------------------------------------

// Returns the sum, over all ops, of the workspace of the op's fastest algorithms.
Bytes Workspaces(const Inputs& inputs) {
  Bytes sum;
  for (const Op& op : inputs.trace()->ops) sum += WorkspaceOf(inputs, op);
  return sum;
}

// Returns the GiB of all layers together, with or without workspaces.
double TotalMemory(const Inputs& inputs, bool workspaces) {
  return (NetworkMemory(*inputs.trace()) + (workspaces ? Workspaces(inputs) : Bytes(0))).gib();
}

// Returns the speed with workspaces over the speed without. Memory is unlimited, since the paper's
// K40 would not hold all of these networks.
Computed WorkspaceSpeedup(const Inputs& inputs) {
  const std::string policy = std::string(kLiveness) + ",workspace=";
  return Ratio(Speed(inputs, ReportOf(inputs, policy + "dynamic")),
               Speed(inputs, ReportOf(inputs, policy + "none")));
}

PaperTable FigureTwo() {
  return {"Fig2",
          Names(),
          RowsOf(Names(), kNetworks),
          {{"Fig2 {workload} B={batch} GB", "GB", OfInputs(TotalMemory, false)},
           {"Fig2 {workload} B={batch} workspaces GB", "GB", OfInputs(TotalMemory, true)},
           {"Fig2 {workload} B={batch} speedup x", "x", OfInputs(WorkspaceSpeedup)}}};
}

// Returns the memory with workspaces at the batches that Table 5 prints, and its ratio to Caffe's.
std::vector<PaperTable> FigureThirteen(const PaperValues& printed) {
  std::vector<PaperTable> tables;
  for (const char* network : kNetworks) {
    const auto smallest = PrintedBatch(printed, network, kFrameworks[0]);
    for (const Framework& framework : kFrameworks) {
      const auto batch = PrintedBatch(printed, network, framework);
      if (!batch || !smallest) continue;
      const std::string item = fmt::format("Fig13 {} {}", NameOf(network), framework.name);
      const auto ratio = [=](const PaperRow& row) {
        Case least = row.asked;
        least.workload = Workload{network, *smallest}.Name();
        return TotalMemory(Inputs(row.asked), true) / TotalMemory(Inputs(least), true);
      };
      tables.push_back(
          {"Fig13",
           Names(),
           {{{network, *batch}}},
           {{item + " GB", "GB", OfInputs(TotalMemory, true)}, {item + " x", "x", ratio}}});
    }
  }
  return tables;
}

// --- Fig. 8: where time and memory go -----------------------------------------------------------

// Returns the percentage that ops of the types have in the sum of `amount(op)` over all forward and
// backward ops. With `forward_only`, only forward ops of the types are added to their part.
template <typename Amount>
double ShareOf(const Trace& trace, const std::vector<OpType>& types, bool forward_only,
               Amount amount) {
  double all = 0, own = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.phase == Phase::kUpdate) continue;
    const double value = amount(static_cast<OpId>(i));
    all += value;
    const bool counts = !forward_only || op.phase == Phase::kForward;
    if (counts && std::count(types.begin(), types.end(), op.type) > 0) own += value;
  }
  return 100 * own / all;
}

// Returns the types' percentage of the kernels' time with the fastest algorithms.
double TimeShare(const Inputs& inputs, const std::vector<OpType>& types, bool forward_only) {
  return ShareOf(*inputs.trace(), types, forward_only, [&](OpId id) {
    const Op& op = inputs.trace()->op(id);
    double seconds = 0;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      seconds += inputs.cost()->Kernels(op, slot, op.batch).front().time.seconds();
    }
    return seconds;
  });
}

// Returns the types' percentage of the bytes of the tensors that the paper counts. Each tensor
// belongs to the op that writes it first.
double MemoryShare(const Inputs& inputs, const std::vector<OpType>& types) {
  const Trace& trace = *inputs.trace();
  const Liveness liveness(trace);
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  return ShareOf(trace, types, false, [&](OpId id) {
    std::vector<TensorId> written;
    double bytes = 0;
    for (const TensorId output : trace.op(id).outputs) {
      const TensorId storage = liveness.Root(output);
      if (!counted[Index(output)] || liveness.Writers(storage).front() != id) continue;
      if (std::count(written.begin(), written.end(), storage) > 0) continue;
      written.push_back(storage);
      bytes += static_cast<double>(trace.tensor(storage).size.count());
    }
    return bytes;
  });
}

PaperTable FigureEight() {
  const std::pair<const char*, std::vector<OpType>> types[] = {
      {"CONV", {OpType::kConv2d}},   {"POOL", {OpType::kMaxPool2d, OpType::kAvgPool2d}},
      {"ACT", {OpType::kRelu}},      {"BN", {OpType::kBatchNorm}},
      {"LRN", {OpType::kLrn}},       {"DROPOUT", {OpType::kDropout}},
      {"FC", {OpType::kLinear}},     {"SOFTMAX", {OpType::kSoftmaxLoss}},
      {"CONCAT", {OpType::kConcat}}, {"JOIN", {OpType::kAdd}},
      {"FORK", {OpType::kFork}},
  };
  PaperTable table{"Fig8", Names(), RowsOf(Names(), kNetworks), {}};
  for (const auto& [name, of] : types) {
    const std::string item = fmt::format("Fig8 {{workload}} {} ", name);
    table.columns.push_back({item + "time %", "%", OfInputs(TimeShare, of, false)});
    table.columns.push_back({item + "forward %", "%", OfInputs(TimeShare, of, true)});
    table.columns.push_back({item + "memory %", "%", OfInputs(MemoryShare, of)});
  }
  return table;
}

// --- Figs. 11 and 12 ----------------------------------------------------------------------------

PaperTable FigureEleven() {
  const PaperNames names = Names(128, 32);
  return {"Fig11",
          names,
          RowsOf(names, kNetworks),
          {{"Fig11 {workload} without", "x", OfInputs([](const Inputs& inputs) {
              return Ratio(Speed(inputs, RunOnGpu(inputs, kUncached)),
                           Speed(inputs, RunOnGpu(inputs, kCached)));
            })}}};
}

// Returns the workspace in MiB that an op is given in the pool, or that its fastest algorithm
// takes; nullopt if the run does not fit or lacks the op.
Computed Workspace(const PaperRow& row, Bytes pool, const std::string& op_name, bool fastest) {
  const Inputs inputs(row.asked);
  const Report report = ReportOf(inputs, kCached, fastest ? Bytes::Unlimited() : pool, kPool);
  if (!report.fits()) return std::nullopt;
  for (const TimelineEntry& entry : report.timeline) {
    const bool runs = entry.kind == CommandKind::kKernel && !entry.recompute;
    if (runs && inputs.trace()->op(entry.op).name == op_name) return entry.size.mib();
  }
  return std::nullopt;
}

// Returns the bytes of the row's pool: the released code's pool of "3GB" has 3 x 1000 MiB.
Bytes PoolOf(const PaperRow& row) { return Bytes::MiB(1000 * static_cast<int64_t>(row.number)); }

// Returns the workspaces of convolutions, forward (f) and backward (b), and the speed, for each
// batch and pool of the paper.
std::vector<PaperTable> FigureTwelve() {
  const auto is_pool = [](const PaperRow& row) {
    return row.number >= 1 && row.number <= 1000 && row.number == std::floor(row.number);
  };
  const std::vector<std::string> layers{"conv1", "conv2", "conv3", "conv4", "conv5"};
  const auto workspaces = [&](const PaperRow& setup, const std::string& phase,
                              const std::string& suffix) {
    PaperTable table{"Fig12", Names(), Rows({setup.workload}, {setup.number}, layers), {}};
    for (const bool fastest : {false, true}) {
      table.columns.push_back({fmt::format("Fig12 {{workload}} {{number}}GB {{layer}}.{} {}", phase,
                                           fastest ? "fastest" : "assigned"),
                               "MB",
                               [=](const PaperRow& row) {
                                 return Workspace(row, PoolOf(row), row.layer + suffix, fastest);
                               },
                               false, "", is_pool});
    }
    return table;
  };
  std::vector<PaperTable> tables;
  for (const PaperRow& setup :
       {PaperRow{{"alexnet-227", 100}, 3}, PaperRow{{"alexnet-227", 300}, 3},
        PaperRow{{"alexnet-227", 300}, 5}}) {
    tables.push_back(workspaces(setup, "f", ".fwd"));
    tables.push_back(workspaces(setup, "b", ".bwd"));
    tables.push_back({"Fig12",
                      Names(),
                      {setup},
                      {{"Fig12 {workload} {number}GB img/s", "img/s",
                        [](const PaperRow& row) {
                          const Inputs inputs(row.asked);
                          return Speed(inputs, ReportOf(inputs, kCached, PoolOf(row), kPool));
                        },
                        false, "", is_pool}}});
  }
  return tables;
}

// --- Fig. 14 and the pools -----------------------------------------------------------------------

// Returns images per second in the GPU's memory by batch and framework. The batches go up to the
// batches that Table 5 prints for a GPU with as much memory.
PaperTable FigureFourteen() {
  PaperTable table{"Fig14", Names(200, 0), {}, {}, PaperRequest::kPaperName};
  for (const char* network : kNetworks) {
    const int64_t first = std::string_view(network) == "alexnet-227" ? 128 : 8;
    for (int64_t batch = first; batch <= 16 * first; batch *= 2) {
      table.rows.push_back({{network, batch}});
    }
  }
  for (const Framework& framework : kFrameworks) {
    table.columns.push_back({fmt::format("Fig14 {{workload}} {} img/s", framework.name), "img/s",
                             [=](const PaperRow& row) {
                               Case asked = row.asked;
                               asked.preset = framework.preset;
                               const Inputs inputs(asked);
                               return Speed(inputs, ReportOf(inputs, std::string(framework.policy),
                                                             inputs.device().memory));
                             }});
  }
  return table;
}

// Returns images per second if outputs of convolutions are offloaded to one of three external
// pools, each at the rate of section 3.3.2, without the cache.
PaperTable PoolTable() {
  const PaperNames names = Names(128, 32);
  PaperTable table{"Pools", names, RowsOf(names, kNetworks), {}};
  for (const auto& [pool, specification] : {std::pair{"host", ""},
                                            {"peer", "peer:size=64GiB,in=10GB/s,out=10GB/s"},
                                            {"remote", "remote:size=64GiB,in=6GB/s,out=6GB/s"}}) {
    table.columns.push_back(
        {fmt::format("Pools {{workload}} {}", pool), "img/s",
         [specification = std::string(specification)](const PaperRow& row) -> Computed {
           Case asked = row.asked;
           // The host is too small for any tensor.
           if (!specification.empty()) asked.pools = {"host:size=1B", specification};
           const Inputs inputs(asked);
           return Speed(inputs, RunOnGpu(inputs, kUncached));
         }});
  }
  return table;
}

}  // namespace

std::vector<PaperTable> SpeedTables(const PaperValues& printed) {
  std::vector<PaperTable> tables = TableTwo();
  const auto add = [&](const std::vector<PaperTable>& more) {
    tables.insert(tables.end(), more.begin(), more.end());
  };
  add({TableThree(), FigureTwo(), FigureEight(), FigureEleven()});
  add(FigureTwelve());
  add(FigureThirteen(printed));
  add({PoolTable()});
  for (PaperTable& table : tables) table.device = kGpu;
  add({FigureFourteen()});
  tables.back().device = kSpeedGpu;
  return tables;
}

}  // namespace spillway::lab::superneurons
