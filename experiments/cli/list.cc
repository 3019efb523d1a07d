// spillway list: what there is to name.

#include <fmt/format.h>

#include <array>

#include "experiments/cli/options.h"
#include "experiments/cli/verbs.h"
#include "traces/ops/table.h"

namespace spillway::cli {
namespace {

// "x weight bias?fused_update&bias", with dots behind what repeats.
std::string Spell(const OperandList& list) {
  std::string text;
  for (const Operand& operand : list.span()) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", Name(operand.role),
                        operand.when.empty() ? "" : "?", operand.when);
  }
  return text + (list.repeats ? " ..." : "");
}

std::string Spell(Rules rules) {
  constexpr std::array kNames{"relu_in_place",      "add_in_place",  "softmax_in_place",
                              "gradients_in_place", "holds_outputs", "holds_operands"};
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if ((rules >> i & 1) != 0) names.push_back(kNames[i]);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

// What forward has made or used and backward reads again.
std::string SavedBy(const OpRow& row) {
  std::vector<std::string_view> saved;
  for (const Operand& operand : row.backward.inputs.span()) {
    const bool comes_back =
        row.forward.inputs.Has(operand.role) || row.forward.outputs.Has(operand.role);
    if (comes_back && operand.when.empty()) saved.push_back(Name(operand.role));
  }
  return fmt::format("{}", fmt::join(saved, " "));
}

Row StepRow(const OpRow& row, Phase phase) {
  constexpr std::array<std::string_view, 3> kLibraries{"none", "convolution", "blas"};
  constexpr std::array<std::string_view, 3> kKinds{"", ":number", ":flag"};
  const OpStep& step = row.step(phase);
  std::vector<std::string_view> slots;
  for (const OpSlot& slot : step.slots) {
    if (!slot.name.empty()) slots.push_back(slot.name);
  }
  std::string attributes;
  for (const AttributeInfo& info : row.attribute_list()) {
    attributes += fmt::format("{}{}{}", attributes.empty() ? "" : " ", info.name,
                              kKinds[static_cast<size_t>(info.kind)]);
  }
  const auto when = [](std::string_view condition) {
    return std::string(condition.empty() ? "always" : condition);
  };
  return {{"type", std::string(Name(row.type))},
          {"phase", std::string(Name(phase))},
          {"inputs", Spell(step.inputs)},
          {"outputs", Spell(step.outputs)},
          {"slots", fmt::format("{}", fmt::join(slots, " "))},
          {"attributes", attributes},
          {"geometry", std::string(row.geometry)},
          {"saved", SavedBy(row)},
          {"library", std::string(kLibraries[static_cast<size_t>(row.library)])},
          {"algorithms", row.algorithms},
          {"deterministic", row.deterministic},
          {"cheap", row.cheap},
          {"whole_batch", when(step.whole_batch)},
          {"overwrites_x", Spell(row.overwrites_x)},
          {"overwrites_dy", Spell(row.overwrites_dy)},
          {"holds_x", Spell(row.holds_x)},
          {"holds_y", Spell(row.holds_y)}};
}

// For people the first columns alone.
std::string DescribeOps(Format format) {
  std::vector<Row> rows;
  std::vector<std::vector<std::string>> cells{{"type", "phase", "inputs", "outputs", "slots"}};
  for (const OpRow& row : kOpTable) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
      if (!row.step(phase).exists()) continue;
      rows.push_back(StepRow(row, phase));
      std::vector<std::string>& line = cells.emplace_back();
      for (size_t i = 0; i < cells.front().size(); ++i) {
        line.push_back(std::get<std::string>(rows.back()[i].value));
      }
    }
  }
  if (format == Format::kTable) return FormatTable(cells);
  return format == Format::kCsv ? FormatCsv(rows) : FormatJson(rows, "spillway.ops/v1");
}

}  // namespace

void AddList(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("list", "List networks, policies, devices and more");
  auto what = std::make_shared<std::string>("all");
  verb->add_option("what", *what, "What to list")
      ->check(CLI::IsMember({"all", "networks", "presets", "policies", "devices", "allocators"}))
      ->capture_default_str();
  CLI::App* ops = verb->add_subcommand(
      "ops", "List the op types of traces: operands, and in CSV and JSON all else that is known");
  auto format = std::make_shared<FormatOption>();
  format->Add(*ops);
  ops->callback([format] { fmt::print("{}", DescribeOps(format->format())); });
  verb->callback([what, verb, &exit_code] {
    exit_code = kOk;
    if (!verb->get_subcommands().empty()) return;
    const auto print = [&](const char* name, std::string (*describe)()) {
      if (*what != "all" && *what != name) return;
      if (*what == "all") fmt::print("== {} ==\n", name);
      fmt::print("{}{}", describe(), *what == "all" ? "\n" : "");
    };
    print("networks", DescribeNetworks);
    print("presets", DescribePresets);
    print("policies", DescribePolicies);
    print("devices", DescribeDevices);
    print("allocators", DescribeAllocators);
  });
}

}  // namespace spillway::cli
