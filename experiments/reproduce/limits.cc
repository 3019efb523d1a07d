#include "experiments/reproduce/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "experiments/limit/limit.h"
#include "experiments/run/catalogue.h"
#include "policies/registry.h"
#include "traces/lowering/lowering.h"

namespace spillway {
namespace {

struct Competitor {
  std::string_view name;    // as the paper prints it
  std::string_view policy;  // and the preset that it is run under
  std::string_view preset;
};
constexpr std::array kColumns{
    Competitor{"Caffe", "caffe", "torch"},
    Competitor{"MXNet", "mxnet", "torch"},
    Competitor{"Torch", "torch", "torch"},
    Competitor{"TensorFlow", "tensorflow", "torch"},
    Competitor{"SuperNeurons", "superneurons", "superneurons"},
};
constexpr size_t kFrameworks = 4;  // the columns before its own

struct Line {
  std::string_view table;
  std::string_view name;    // empty in Table 4
  std::string_view family;  // what varies is its batch, or the number that has a name
  std::array<int, kColumns.size()> printed;  // 0: "N/A"
  // The paper's order follows from the frameworks' rules. On AlexNet it does not: MXNet ends before
  // Torch, though it frees what Torch keeps.
  bool order_is_judged = true;
};
constexpr std::array kLines{
    Line{"Tab4", "", "resnet(6,32,n3,6)@227:16", {148, 480, 152, 592, 1920}},
    Line{"Tab5", "AlexNet", "alexnet-227", {768, 768, 1024, 1408, 1792}, false},
    Line{"Tab5", "VGG16", "vgg16@227", {48, 64, 48, 80, 224}},
    Line{"Tab5", "InceptionV4", "inception-v4", {16, 0, 0, 64, 240}},
    Line{"Tab5", "ResNet50", "resnet50@227", {24, 80, 32, 128, 384}},
    Line{"Tab5", "ResNet101", "resnet101@227", {16, 48, 16, 80, 256}},
    Line{"Tab5", "ResNet152", "resnet152@227", {16, 32, 16, 48, 176}},
};

std::string ItemName(const Line& line, std::string_view column) {
  return line.name.empty() ? fmt::format("{} {}", line.table, column)
                           : fmt::format("{} {} {}", line.table, line.name, column);
}

std::string_view UnitOf(const Line& line) { return line.name.empty() ? "layers" : "images"; }

// Pairs of frameworks for which the paper prints different numbers, the smaller first.
std::vector<std::pair<size_t, size_t>> OrderedPairs(const Line& line) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t less = 0; less < kFrameworks; ++less) {
    for (size_t more = 0; more < kFrameworks; ++more) {
      const bool known = line.printed[less] > 0 && line.printed[more] > 0;
      if (known && line.printed[less] < line.printed[more]) pairs.emplace_back(less, more);
    }
  }
  return pairs;
}

bool HasPolicy(const Competitor& column) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const auto named = [&](const auto& entry) { return entry.name == column.policy; };
  const auto preset = [&](const Preset& known) { return known.name == column.preset; };
  return std::any_of(registry.entries().begin(), registry.entries().end(), named) &&
         std::any_of(Presets().begin(), Presets().end(), preset);
}

// The limit as the paper counts it.
std::optional<double> LimitOf(const Line& line, const Competitor& column) {
  if (!HasPolicy(column)) return std::nullopt;
  LimitSetup setup{line.name.empty() ? WorkloadFamily::OfDepths(line.family)
                                     : WorkloadFamily::OfBatches(line.family)};
  setup.preset = column.preset;
  setup.run.device = LoadDevice("k40c");
  setup.run.memory = Bytes::GiB(12);
  setup.scan = 1;
  const int64_t largest =
      FindLimit(setup, std::string(column.policy), [](int64_t) {}).limit.largest;
  if (largest == 0) return 0;
  const Workload workload = setup.family.At(largest);
  const int64_t limit = setup.family.deepens() ? *ResNetDepth(workload.network) : workload.batch;
  return static_cast<double>(limit);
}

// How many pairs are in the paper's order.
double InOrder(const Line& line) {
  std::array<double, kFrameworks> limits{};
  for (size_t i = 0; i < kFrameworks; ++i) {
    if (line.printed[i] > 0) limits[i] = LimitOf(line, kColumns[i]).value_or(0);
  }
  const auto pairs = OrderedPairs(line);
  return static_cast<double>(std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
    return limits[pair.first] < limits[pair.second];
  }));
}

std::vector<PaperValue> ValuesOf(const Line& line) {
  std::vector<PaperValue> values;
  const auto add = [&](std::string_view column, std::string_view unit, int64_t printed,
                       const char* evidence) {
    values.push_back({"superneurons", ItemName(line, column), std::string(line.family),
                      std::string(unit), fmt::format("{}", printed), evidence});
  };
  for (size_t i = 0; i < kColumns.size(); ++i) {
    if (line.printed[i] > 0) add(kColumns[i].name, UnitOf(line), line.printed[i], "x");
  }
  add("order", "count", static_cast<int64_t>(OrderedPairs(line).size()),
      line.order_is_judged ? "=" : "x");
  return values;
}

}  // namespace

std::vector<PaperValue> SelectLimitValues(std::string_view request) {
  constexpr std::string_view kPrefix = "superneurons-";
  const bool figure = request.starts_with(kPrefix);
  if (figure) request.remove_prefix(kPrefix.size());
  std::vector<PaperValue> selected;
  for (const Line& line : kLines) {
    for (PaperValue& value : ValuesOf(line)) {
      const bool wanted =
          figure ? request == "limits" || request == line.table : request == value.item;
      if (wanted) selected.push_back(std::move(value));
    }
  }
  return selected;
}

std::optional<ComputableItem> ParseLimitItem(std::string_view item) {
  for (const Line& line : kLines) {
    const std::string workload(line.family);
    for (const Competitor& column : kColumns) {
      if (item != ItemName(line, column.name)) continue;
      return ComputableItem{
          std::string(item), workload, std::string(UnitOf(line)), false, "", [&line, &column] {
            return LimitOf(line, column);
          }};
    }
    if (item == ItemName(line, "order")) {
      return ComputableItem{std::string(item),
                            workload,
                            "count",
                            false,
                            "",
                            [&line] { return std::optional(InOrder(line)); }};
    }
  }
  return std::nullopt;
}

}  // namespace spillway
