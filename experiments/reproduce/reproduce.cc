#include "experiments/reproduce/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "experiments/reproduce/limits.h"
#include "experiments/reproduce/superneurons.h"
#include "experiments/reproduce/vdnnpp.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/simulate.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

// --- The list of printed values -----------------------------------------------------------------

std::optional<double> ParseNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// --- vDNN ----------------------------------------------------------------------------------------

// A kind of number that the paper prints for a network and batch, in units of its preset.
struct VdnnKind {
  std::string_view name;  // item names are NAME NETWORK(BATCH) UNIT
  double (*compute)(const Setup& setup);
};

Metrics RunPolicy(const Setup& setup, std::string_view policy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Outcome outcome = Simulate(setup, *registry.Make(policy));
  SPILLWAY_CHECK(outcome.report.fits());  // memory is unlimited
  return outcome.report.metrics;
}

double InUnits(const Setup& setup, Bytes size) {
  return static_cast<double>(size.count()) /
         static_cast<double>(FindPreset(setup.trace->preset).counting.bytes_per_unit.count());
}

// All tensors of the network-wide run, and the workspace that the paper counts.
double BaselineMemory(const Setup& setup) {
  return InUnits(setup, RunPolicy(setup, "network-wide:algo=memory").peak_requested +
                            FftBaselineWorkspace(*setup.trace));
}

constexpr std::array kVdnnKinds{
    VdnnKind{"base", BaselineMemory},
    VdnnKind{"offload all",
             [](const Setup& s) { return InUnits(s, RunPolicy(s, "vdnn-all").offloaded); }},
    VdnnKind{"offload conv",
             [](const Setup& s) { return InUnits(s, RunPolicy(s, "vdnn-conv").offloaded); }},
    VdnnKind{"all(m) max",
             [](const Setup& s) {
               return InUnits(s, RunPolicy(s, "vdnn-all:algo=memory").peak_requested);
             }},
    VdnnKind{"conv(m) max",
             [](const Setup& s) {
               return InUnits(s, RunPolicy(s, "vdnn-conv:algo=memory").peak_requested);
             }},
};

// "VGG-16(256)" as the paper writes it, or nullopt. Its VGG-16 is configuration E, our vgg19.
std::optional<Workload> ParsePaperWorkload(std::string_view text) {
  const size_t open = text.find('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  std::string network;
  for (const char c : text.substr(0, open)) {
    if (c != '-' && c != ' ') network += static_cast<char>(std::tolower(c));
  }
  if (network == "vgg16") network = "vgg19";
  const std::string_view batch = text.substr(open + 1, text.size() - open - 2);
  try {
    return ParseWorkload(fmt::format("{}:{}", network, batch));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

struct VdnnItem {
  const VdnnKind* kind;
  Workload workload;
};

std::optional<VdnnItem> ParseVdnnItem(std::string_view item) {
  constexpr std::string_view kUnit = " GB";
  if (!item.ends_with(kUnit)) return std::nullopt;
  item.remove_suffix(kUnit.size());
  for (const VdnnKind& kind : kVdnnKinds) {
    if (!item.starts_with(kind.name) || item.size() <= kind.name.size() + 1) continue;
    const auto workload = ParsePaperWorkload(item.substr(kind.name.size() + 1));
    if (workload) return VdnnItem{&kind, *workload};
  }
  return std::nullopt;
}

double ComputeVdnn(const VdnnItem& item) {
  const Trace trace =
      LowerNetwork(BuildNetwork(item.workload.network), {item.workload.batch, "vdnn", true});
  const Device device = LoadDevice("titan_x_maxwell");
  const RooflineCostModel cost(device);
  return item.kind->compute({Borrow(trace), device, Borrow(cost), Bytes::Unlimited()});
}

// --- Judging -------------------------------------------------------------------------------------

// Digits after the decimal point of a printed number.
int Decimals(std::string_view printed) {
  const size_t point = printed.find('.');
  return point == std::string_view::npos ? 0 : static_cast<int>(printed.size() - point - 1);
}

double RoundTo(double value, int decimals, bool down) {
  const double scale = std::pow(10.0, decimals);
  // The small addend keeps a number that is exact in decimal from falling under its own digits.
  return (down ? std::floor(value * scale + 1e-9) : std::round(value * scale)) / scale;
}

void Judge(Reproduction& result) {
  const std::optional<double> printed = ParseNumber(result.value.printed);
  if (!printed || !result.ours) return;
  if (*printed != 0) result.rel_error = (*result.ours - *printed) / *printed;
  const std::string& evidence = result.value.evidence;
  result.judged = evidence == "=" || evidence == "c" || evidence == "~";
  if (!result.judged) return;
  const double tolerance = evidence == "=" ? 1e-12 : evidence == "c" ? 0.01 : 0.02;
  result.passes = std::abs(result.rel_error.value_or(*result.ours)) <= tolerance;
}

}  // namespace

std::vector<PaperValue> ReadPaperValues(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  std::vector<PaperValue> values;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto fields = SplitCsv(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    if (line_number == 1) continue;  // header
    if (fields.size() != 6) {
      throw InputError(
          fmt::format("{}:{}: {} fields, expected 6", path.string(), line_number, fields.size()));
    }
    values.push_back({fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
  }
  return values;
}

std::vector<PaperValue> SelectPaperValues(const std::vector<PaperValue>& values,
                                          const std::string& request) {
  std::vector<PaperValue> selected;
  std::vector<std::string> names{"all"};
  for (const PaperValue& value : values) {
    if (request == "all" || request == value.paper || request == value.item) {
      selected.push_back(value);
    }
    if (std::find(names.begin(), names.end(), value.paper) == names.end()) {
      names.push_back(value.paper);
    }
  }
  if (!selected.empty()) return selected;
  selected = SelectLimitValues(request);
  if (!selected.empty()) return selected;
  if (const auto item = ParseVdnnItem(request)) {
    return {{"vdnn", request, item->workload.Name(), "GB", "", ""}};
  }
  // A figure that two papers number alike is named with its paper: vdnnpp-Fig10.
  const auto names_for = [&](std::string_view paper, const auto& items_of) {
    const std::string prefix = fmt::format("{}-", paper);
    std::vector<std::string> items =
        items_of(request.starts_with(prefix) ? request.substr(prefix.size()) : request);
    if (items.empty()) items.push_back(request);
    return items;
  };
  const auto add = [&](const char* paper, const std::string& name, const ComputableItem& item) {
    const auto listed = std::find_if(values.begin(), values.end(), [&](const PaperValue& value) {
      return value.paper == paper && value.item == name;
    });
    selected.push_back(listed != values.end()
                           ? *listed
                           : PaperValue{paper, name, item.workload, item.unit, "", item.evidence});
  };
  for (const std::string& name : names_for("vdnnpp", VdnnppItemsOf)) {
    if (const auto item = ParseVdnnppItem(name)) add("vdnnpp", name, *item);
  }
  for (const std::string& name : names_for("superneurons", SuperNeuronsItemsOf)) {
    if (const auto item = ParseSuperNeuronsItem(name)) add("superneurons", name, *item);
  }
  if (!selected.empty()) return selected;
  throw UsageError(
      fmt::format("{}; also Tab4, Fig5, Fig6 and Fig9 (of vDNN++), vdnnpp-Fig10, superneurons- and "
                  "Tab2 to Tab5, Fig2, Fig8 or Fig10 to Fig13, Floor (of SuperNeurons), and an "
                  "item name such as 'base VGG-16(256) GB', for any network and batch",
                  UnknownName("item", request, names)));
}

Reproduction Reproduce(const PaperValue& value) {
  Reproduction result;
  result.value = value;
  if (value.paper == "vdnn") {
    if (const auto item = ParseVdnnItem(value.item)) {
      result.ours_exact = ComputeVdnn(*item);
      result.ours = value.printed.empty() ? *result.ours_exact
                                          : RoundTo(*result.ours_exact, Decimals(value.printed),
                                                    FindPreset("vdnn").counting.round_down);
    }
  }
  if (value.paper == "vdnnpp" || value.paper == "superneurons") {
    const auto item =
        value.paper == "vdnnpp" ? ParseVdnnppItem(value.item) : ParseSuperNeuronsItem(value.item);
    if (item) {
      result.ours_exact = item->compute();
      result.ours = result.ours_exact;
      if (result.ours && !value.printed.empty()) {
        result.ours = RoundTo(*result.ours, Decimals(value.printed), item->round_down);
      }
    }
  }
  if (const auto item = ParseLimitItem(value.item); item && value.paper == "superneurons") {
    result.ours = result.ours_exact = item->compute();
  }
  Judge(result);
  return result;
}

Row MakeReproductionRow(const Reproduction& reproduction) {
  const PaperValue& value = reproduction.value;
  const auto number = [](const std::optional<double>& optional) -> Value {
    return optional ? Value(*optional) : Value();
  };
  const auto text = [](const std::string& string) -> Value {
    return string.empty() ? Value() : Value(string);
  };
  return {
      {"paper", value.paper},
      {"item", value.item},
      {"workload", value.workload},
      {"printed", number(ParseNumber(value.printed))},
      {"ours", number(reproduction.ours)},
      {"rel_error", number(reproduction.rel_error)},
      {"unit", value.unit},
      {"evidence", text(value.evidence)},
      {"ours_exact", number(reproduction.ours_exact)},
      {"judged", reproduction.judged},
      {"passes", reproduction.judged ? Value(reproduction.passes) : Value()},
  };
}

}  // namespace spillway
