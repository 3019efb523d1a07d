#include "experiments/reproduce/superneurons_setup.h"

#include <array>
#include <cctype>
#include <charconv>
#include <utility>
#include <vector>

#include "experiments/run/catalogue.h"
#include "experiments/run/simulate.h"
#include "policies/registry.h"
#include "policies/superneurons_steps.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::superneurons {
namespace {

constexpr const char* kGpu = "k40c";

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
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

bool InZoo(const std::string& network) {
  try {
    ParseWorkload(network + ":1");
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

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

std::string_view TakeLastWord(std::string_view& text) {
  const size_t blank = text.rfind(' ');
  const size_t begin = blank == std::string_view::npos ? 0 : blank + 1;
  const std::string_view word = text.substr(begin);
  text = text.substr(0, begin == 0 ? 0 : blank);
  return word;
}

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<Workload> ParseNetwork(std::string_view text, int64_t batch) {
  // A batch, but not the blocks of resnet(3,4,6,3).
  const size_t open = text.rfind('(');
  if (open != std::string_view::npos && text.ends_with(')')) {
    if (const auto own = ParseNumber(text.substr(open + 1, text.size() - open - 2))) {
      if (*own < 1 || *own > 65536) return std::nullopt;
      batch = *own;
      text = text.substr(0, open);
    }
  }
  Workload workload{Lower(text), batch};
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

Scene::Scene(const Workload& workload)
    : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, kPreset, true})),
      device(LoadDevice(kGpu)),
      cost(device) {}

Report Scene::Run(const std::string& policy, Bytes memory, const std::string& allocator) const {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  return Simulate({Borrow(trace), device, Borrow(cost), memory, allocator}, *registry.Make(policy))
      .report;
}

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

Bytes NetworkMemory(const Trace& trace) {
  Bytes bytes = CountedStorages(trace).bytes;
  for (const Op& op : trace.ops) {
    const bool forks = op.type == OpType::kFork && op.phase == Phase::kForward;
    if (forks) bytes -= trace.tensor(op.outputs.front()).size;
  }
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind == TensorKind::kParameter) bytes += tensor.size * 3;
  }
  return bytes;
}

}  // namespace spillway::superneurons
