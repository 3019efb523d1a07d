#include "experiments/reproduce/superneurons_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "experiments/reproduce/limits.h"
#include "experiments/reproduce/superneurons_setup.h"
#include "policies/superneurons_steps.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway {
namespace {

using namespace superneurons;

constexpr std::array kFigureNetworks{"AlexNet",  "VGG16",     "InceptionV4",
                                     "ResNet50", "ResNet101", "ResNet152"};

// --- Runs ---------------------------------------------------------------------------------------

// Everything fits and nothing is rebuilt: what is left of the techniques is liveness.
constexpr const char* kLiveness = "superneurons:offload=none,recompute=none";
// All techniques, with the paper's set of tensors that leave; with the cache, and without.
constexpr const char* kCached = "superneurons:offload=conv";
constexpr const char* kUncached = "superneurons:offload=conv,cache=none";

Report RunOnGpu(const Scene& scene, const std::string& policy,
                const std::string& allocator = kPool) {
  return scene.Run(policy, scene.device.memory, allocator);
}

// Images per second; nullopt if it does not fit.
Computed Speed(const Scene& scene, const Report& report) {
  if (!report.fits()) return std::nullopt;
  return static_cast<double>(scene.trace.batch) / report.metrics.iteration.seconds();
}

Computed Ratio(Computed a, Computed b) { return a && b ? std::optional(*a / *b) : std::nullopt; }

// The paper has a larger batch for AlexNet than for the other networks.
std::optional<Workload> ParseWithBatch(std::string_view text, int64_t alexnet, int64_t others) {
  const auto network = ParseNetwork(text);
  const bool is_alexnet = network && network->network == "alexnet-227";
  return ParseNetwork(text, is_alexnet ? alexnet : others);
}

// --- Tables 2 and 3 -----------------------------------------------------------------------------

Computed PoolSpeed(const Workload& workload, const std::string& allocator) {
  const Scene scene(workload);
  return Speed(scene, RunOnGpu(scene, kLiveness, allocator));
}

std::optional<ComputableItem> ParseTableTwo(std::string_view rest) {
  const bool overhead = TakeSuffix(rest, " overhead %");
  const std::string_view column = overhead ? "overhead" : TakeLastWord(rest);
  const auto network = ParseWithBatch(rest, 128, 16);
  if (!network) return std::nullopt;
  const auto speed = [workload = *network](const char* allocator) {
    return [=] { return PoolSpeed(workload, allocator); };
  };
  const auto gain = [workload = *network] {
    return Ratio(PoolSpeed(workload, kPool), PoolSpeed(workload, "native"));
  };
  if (column == "CUDA") return MakeItem(*network, "img/s", speed("native"));
  if (column == "Ours") return MakeItem(*network, "img/s", speed(kPool));
  if (column == "speedup") return MakeItem(*network, "x", gain);
  if (!overhead) return std::nullopt;
  return MakeItem(*network, "%", [gain]() -> Computed {
    const Computed faster = gain();
    return faster ? std::optional(100 * (1 - 1 / *faster)) : std::nullopt;
  });
}

Computed Copied(const Workload& workload, const char* policy) {
  const Scene scene(workload);
  const Report report = RunOnGpu(scene, policy);
  if (!report.fits()) return std::nullopt;
  return static_cast<double>((report.metrics.offloaded + report.metrics.prefetched).count()) / 1e9;
}

std::optional<ComputableItem> ParseTableThree(std::string_view rest) {
  if (!TakeSuffix(rest, " GB")) return std::nullopt;
  const std::string_view column = TakeLastWord(rest);
  const auto workload = ParseNetwork(rest);
  if (!workload || (column != "without" && column != "cache")) return std::nullopt;
  const char* policy = column == "cache" ? kCached : kUncached;
  return MakeItem(*workload, "GB", [=, workload = *workload] { return Copied(workload, policy); });
}

// --- Figs. 2 and 13: the memory of whole networks -----------------------------------------------

// The workspaces of the fastest algorithms, each step's apart.
Bytes Workspaces(const Scene& scene) {
  Bytes sum;
  for (const Op& op : scene.trace.ops) {
    Bytes largest;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      largest = std::max(largest, scene.cost.Kernels(op, slot, op.batch).front().workspace);
    }
    sum += largest;
  }
  return sum;
}

double TotalMemory(const Workload& workload, bool workspaces) {
  const Scene scene(workload);
  return (NetworkMemory(scene.trace) + (workspaces ? Workspaces(scene) : Bytes(0))).gib();
}

// In unlimited memory: the paper's K40 would not hold all of these networks.
Computed WorkspaceSpeedup(const Workload& workload) {
  const Scene scene(workload);
  const std::string policy = std::string(kLiveness) + ",workspace=";
  return Ratio(Speed(scene, scene.Run(policy + "dynamic")),
               Speed(scene, scene.Run(policy + "none")));
}

std::optional<ComputableItem> ParseFigureTwo(std::string_view rest) {
  const bool speedup = TakeSuffix(rest, " speedup x");
  const bool workspaces = !speedup && TakeSuffix(rest, " workspaces GB");
  if (!speedup && !workspaces && !TakeSuffix(rest, " GB")) return std::nullopt;
  std::string_view batch_text = TakeLastWord(rest);
  if (!TakePrefix(batch_text, "B=")) return std::nullopt;
  const auto batch = ParseNumber(batch_text);
  auto workload = ParseNetwork(rest);
  if (!workload || !batch || *batch < 1 || *batch > 65536) return std::nullopt;
  workload->batch = *batch;
  if (speedup) {
    return MakeItem(*workload, "x", [workload = *workload] { return WorkspaceSpeedup(workload); });
  }
  return MakeItem(*workload, "GB",
                  [=, workload = *workload] { return TotalMemory(workload, workspaces); });
}

// The batch that the paper's Table 5 prints for a network and framework.
std::optional<int64_t> WidestPrinted(std::string_view network, std::string_view framework) {
  const auto printed = SelectLimitValues(fmt::format("Tab5 {} {}", network, framework));
  return printed.size() == 1 ? ParseNumber(printed.front().printed) : std::nullopt;
}

std::optional<ComputableItem> ParseFigureThirteen(std::string_view rest) {
  const bool ratio = TakeSuffix(rest, " x");
  if (!ratio && !TakeSuffix(rest, " GB")) return std::nullopt;
  const std::string_view framework = TakeLastWord(rest);
  const auto batch = WidestPrinted(rest, framework), base = WidestPrinted(rest, "Caffe");
  if (!batch || !base) return std::nullopt;
  const auto workload = ParseNetwork(rest, *batch), smallest = ParseNetwork(rest, *base);
  if (!workload || !smallest) return std::nullopt;
  return MakeItem(*workload, ratio ? "x" : "GB",
                  [=, workload = *workload, smallest = *smallest]() -> Computed {
                    const double memory = TotalMemory(workload, true);
                    return ratio ? memory / TotalMemory(smallest, true) : memory;
                  });
}

// --- Fig. 8: where time and memory go -----------------------------------------------------------

struct LayerType {
  std::string_view name;  // as the paper writes it
  std::vector<OpType> types;
};
const std::vector<LayerType>& LayerTypes() {
  static const std::vector<LayerType> types{
      {"CONV", {OpType::kConv2d}},   {"POOL", {OpType::kMaxPool2d, OpType::kAvgPool2d}},
      {"ACT", {OpType::kRelu}},      {"BN", {OpType::kBatchNorm}},
      {"LRN", {OpType::kLrn}},       {"DROPOUT", {OpType::kDropout}},
      {"FC", {OpType::kLinear}},     {"SOFTMAX", {OpType::kSoftmaxLoss}},
      {"CONCAT", {OpType::kConcat}}, {"JOIN", {OpType::kAdd}},
      {"FORK", {OpType::kFork}},
  };
  return types;
}

// The part, in percent, of what `amount` gives for each op that is not an update; of the types'
// ops, in forward only or in both passes.
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

// Of the kernels' time, with the fastest algorithms.
double TimeShare(const Workload& workload, const std::vector<OpType>& types, bool forward_only) {
  const Scene scene(workload);
  return ShareOf(scene.trace, types, forward_only, [&](OpId id) {
    const Op& op = scene.trace.op(id);
    double seconds = 0;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      seconds += scene.cost.Kernels(op, slot, op.batch).front().time.seconds();
    }
    return seconds;
  });
}

// Of the tensors that the paper counts, each with the step that writes it first.
double MemoryShare(const Workload& workload, const std::vector<OpType>& types) {
  const Trace trace = Scene(workload).trace;
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

std::optional<ComputableItem> ParseFigureEight(std::string_view rest) {
  if (!TakeSuffix(rest, " %")) return std::nullopt;
  const std::string_view column = TakeLastWord(rest);
  const std::string_view name = TakeLastWord(rest);
  const auto workload = ParseNetwork(rest);
  const auto type = std::find_if(LayerTypes().begin(), LayerTypes().end(),
                                 [&](const LayerType& known) { return known.name == name; });
  if (!workload || type == LayerTypes().end()) return std::nullopt;
  if (column == "memory") {
    return MakeItem(*workload, "%",
                    [=, workload = *workload] { return MemoryShare(workload, type->types); });
  }
  if (column != "time" && column != "forward") return std::nullopt;
  return MakeItem(*workload, "%", [=, workload = *workload, forward = column == "forward"] {
    return TimeShare(workload, type->types, forward);
  });
}

// --- Figs. 11 and 12 ----------------------------------------------------------------------------

std::optional<ComputableItem> ParseFigureEleven(std::string_view rest) {
  if (!TakeSuffix(rest, " without")) return std::nullopt;
  const auto workload = ParseWithBatch(rest, 128, 32);
  if (!workload) return std::nullopt;
  return MakeItem(*workload, "x", [workload = *workload] {
    const Scene scene(workload);
    return Ratio(Speed(scene, RunOnGpu(scene, kUncached)), Speed(scene, RunOnGpu(scene, kCached)));
  });
}

// The workspace that a step is given in a pool, or would have for its fastest algorithm, in MB.
Computed Workspace(const Workload& workload, Bytes pool, const std::string& op_name, bool fastest) {
  const Scene scene(workload);
  const Report report = scene.Run(kCached, fastest ? Bytes::Unlimited() : pool, kPool);
  if (!report.fits()) return std::nullopt;
  for (const TimelineEntry& entry : report.timeline) {
    const bool runs = entry.kind == CommandKind::kKernel && !entry.recompute;
    if (runs && scene.trace.op(entry.op).name == op_name) return entry.size.mib();
  }
  return std::nullopt;
}

// "3GB": the released code's pool is one of 3 x 1000 MiB.
std::optional<Bytes> ParsePool(std::string_view text) {
  const auto size = TakeSuffix(text, "GB") ? ParseNumber(text) : std::nullopt;
  if (!size || *size < 1 || *size > 1000) return std::nullopt;
  return Bytes::MiB(1000 * *size);
}

std::optional<ComputableItem> ParseFigureTwelve(std::string_view rest) {
  const std::string_view column = TakeLastWord(rest);
  const std::string_view step = column == "img/s" ? "" : TakeLastWord(rest);
  const auto pool = ParsePool(TakeLastWord(rest));
  const auto workload = ParseNetwork(rest);
  if (!pool || !workload) return std::nullopt;
  if (column == "img/s") {
    return MakeItem(*workload, "img/s", [pool = *pool, workload = *workload] {
      const Scene scene(workload);
      return Speed(scene, scene.Run(kCached, pool, kPool));
    });
  }
  std::string_view layer = step;
  const bool forward = TakeSuffix(layer, ".f");
  if (!forward && !TakeSuffix(layer, ".b")) return std::nullopt;
  if (column != "assigned" && column != "fastest") return std::nullopt;
  const std::string op_name = fmt::format("{}.{}", layer, forward ? "fwd" : "bwd");
  return MakeItem(*workload, "MB", [=, pool = *pool, workload = *workload] {
    return Workspace(workload, pool, op_name, column == "fastest");
  });
}

}  // namespace

std::optional<ComputableItem> ParseSuperNeuronsSpeedItem(std::string_view text) {
  if (TakePrefix(text, "Tab2 ")) return ParseTableTwo(text);
  if (TakePrefix(text, "Tab3 ")) return ParseTableThree(text);
  if (TakePrefix(text, "Fig2 ")) return ParseFigureTwo(text);
  if (TakePrefix(text, "Fig8 ")) return ParseFigureEight(text);
  if (TakePrefix(text, "Fig11 ")) return ParseFigureEleven(text);
  if (TakePrefix(text, "Fig12 ")) return ParseFigureTwelve(text);
  if (TakePrefix(text, "Fig13 ")) return ParseFigureThirteen(text);
  return std::nullopt;
}

std::vector<std::string> SuperNeuronsSpeedItemsOf(std::string_view figure) {
  std::vector<std::string> items;
  const auto for_networks = [&](auto add) {
    for (const std::string_view network : kFigureNetworks) add(network);
  };
  if (figure == "Tab2") {
    for_networks([&](std::string_view network) {
      for (const char* column : {"CUDA", "Ours", "speedup"}) {
        items.push_back(fmt::format("Tab2 {} {}", network, column));
      }
    });
    items.push_back("Tab2 ResNet50 overhead %");
  } else if (figure == "Tab3") {
    for (const int batch : {256, 384, 512, 640, 896, 1024}) {
      for (const char* column : {"without", "cache"}) {
        items.push_back(fmt::format("Tab3 AlexNet({}) {} GB", batch, column));
      }
    }
  } else if (figure == "Fig2") {
    for_networks([&](std::string_view network) {
      for (const char* column : {"GB", "workspaces GB", "speedup x"}) {
        items.push_back(
            fmt::format("Fig2 {} B={} {}", network, network == "AlexNet" ? 200 : 32, column));
      }
    });
  } else if (figure == "Fig8") {
    for_networks([&](std::string_view network) {
      for (const LayerType& type : LayerTypes()) {
        for (const char* column : {"time", "forward", "memory"}) {
          items.push_back(fmt::format("Fig8 {} {} {} %", network, type.name, column));
        }
      }
    });
  } else if (figure == "Fig11") {
    for_networks([&](std::string_view network) {
      items.push_back(fmt::format("Fig11 {} without", network));
    });
  } else if (figure == "Fig12") {
    for (const char* setup : {"AlexNet(100) 3GB", "AlexNet(300) 3GB", "AlexNet(300) 5GB"}) {
      for (const char* phase : {"f", "b"}) {
        for (int conv = 1; conv <= 5; ++conv) {
          for (const char* column : {"assigned", "fastest"}) {
            items.push_back(fmt::format("Fig12 {} conv{}.{} {}", setup, conv, phase, column));
          }
        }
      }
      items.push_back(fmt::format("Fig12 {} img/s", setup));
    }
  } else if (figure == "Fig13") {
    for_networks([&](std::string_view network) {
      for (const char* framework : {"Caffe", "MXNet", "Torch", "TensorFlow", "SuperNeurons"}) {
        for (const char* unit : {"GB", "x"}) {
          items.push_back(fmt::format("Fig13 {} {} {}", network, framework, unit));
        }
      }
    });
  }
  return items;
}

}  // namespace spillway
