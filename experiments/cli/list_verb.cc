// spillway list: what there is to name.

#include <fmt/format.h>

#include <array>
#include <memory>

#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/run_result.h"
#include "traces/ops/op_table.h"

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

// One step of an op type.
struct OpTypeStep {
  const OpRow* row;
  Phase phase;
  const OpStep& step() const { return row->step(phase); }
};

std::string SlotsOf(const OpTypeStep& of) {
  std::vector<std::string_view> slots;
  for (const OpSlot& slot : of.step().slots) {
    if (!slot.name.empty()) slots.push_back(slot.name);
  }
  return fmt::format("{}", fmt::join(slots, " "));
}

std::string AttributesOf(const OpTypeStep& of) {
  constexpr std::array<std::string_view, 3> kKinds{"", ":number", ":flag"};
  std::string attributes;
  for (const AttributeInfo& info : of.row->attribute_list()) {
    attributes += fmt::format("{}{}{}", attributes.empty() ? "" : " ", info.name,
                              kKinds[static_cast<size_t>(info.kind)]);
  }
  return attributes;
}

Columns<OpTypeStep> OpColumns() {
  using S = OpTypeStep;
  const auto when = [](std::string_view condition) {
    return condition.empty() ? std::string_view("always") : condition;
  };
  const auto library = [](const S& of) {
    constexpr std::array<std::string_view, 3> kLibraries{"none", "convolution", "blas"};
    return kLibraries[static_cast<size_t>(of.row->library)];
  };
  return {
      {"type", "", "as in trace files", [](const S& of) { return Name(of.row->type); }, "type"},
      {"phase", "", "of the step", [](const S& of) { return Name(of.phase); }, "phase"},
      {"inputs", "", "what the step reads", [](const S& of) { return Spell(of.step().inputs); },
       "inputs"},
      {"outputs", "", "what it writes", [](const S& of) { return Spell(of.step().outputs); },
       "outputs"},
      {"slots", "", "its library calls", SlotsOf, "slots"},
      {"attributes", "", "of the op", AttributesOf},
      {"geometry", "", "of its signature", [](const S& of) { return of.row->geometry; }},
      {"saved", "", "what of forward backward reads", [](const S& of) { return SavedBy(*of.row); }},
      {"library", "", "that launches it", library},
      {"algorithms", "", "whether the library offers a choice",
       [](const S& of) { return of.row->algorithms; }},
      {"deterministic", "", "gives the same bits on every run",
       [](const S& of) { return of.row->deterministic; }},
      {"cheap", "", "to rebuild", [](const S& of) { return of.row->cheap; }},
      {"whole_batch", "", "when the batch cannot be split",
       [when](const S& of) { return when(of.step().whole_batch); }},
      {"overwrites_x", "", "rules under which it does",
       [](const S& of) { return Spell(of.row->overwrites_x); }},
      {"overwrites_dy", "", "likewise", [](const S& of) { return Spell(of.row->overwrites_dy); }},
      {"holds_x", "", "likewise", [](const S& of) { return Spell(of.row->holds_x); }},
      {"holds_y", "", "likewise", [](const S& of) { return Spell(of.row->holds_y); }},
  };
}

// For people the first columns alone.
void AddOps(CLI::App& list, int& exit_code, Session& session) {
  CLI::App* verb = list.add_subcommand(
      "ops", "List the op types of traces: operands, and in CSV and JSON all else that is known");
  auto format = std::make_shared<FormatOption>();
  format->Add(*verb);
  verb->callback([format, &exit_code, &session] {
    std::vector<OpTypeStep> steps;
    for (const OpRow& row : kOpTable) {
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
        if (row.step(phase).exists()) steps.push_back({&row, phase});
      }
    }
    constexpr std::string_view kShown[] = {"type", "phase", "inputs", "outputs", "slots"};
    const Columns<OpTypeStep> columns = OpColumns();
    exit_code = session.Finish(FormatAs(format->format(), columns, steps, "spillway.ops/v1",
                                        [&] { return FormatTable(columns, kShown, steps); }),
                               kOk);
  });
}

// What the rows of `run` and `compare` are made of.
void AddColumns(CLI::App& list, int& exit_code, Session& session) {
  CLI::App* verb = list.add_subcommand("columns", "The columns of results, with unit and meaning");
  auto format = std::make_shared<FormatOption>();
  format->Add(*verb);
  verb->callback([format, &exit_code, &session] {
    using Result = Column<RunResult>;
    const Columns<Result> columns{
        {"name", "", "in CSV and JSON", &Result::name, "column"},
        {"unit", "", "ms or B; 1 for ratios and counts", &Result::unit, "unit"},
        {"type", "", "in JSON", &Result::type},
        {"help", "", "what it means", &Result::help, "meaning"},
    };
    constexpr std::string_view kShown[] = {"name", "unit", "help"};
    const Columns<RunResult> results = ResultColumns();
    exit_code = session.Finish(FormatAs(format->format(), columns, results, "spillway.columns/v1",
                                        [&] { return FormatTable(columns, kShown, results); }),
                               kOk);
  });
}

}  // namespace

void AddList(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand("list", "List networks, policies, devices and more");
  auto what = std::make_shared<std::string>("all");
  verb->add_option("what", *what, "What to list")
      ->check(CLI::IsMember({"all", "networks", "presets", "policies", "devices", "allocators"}))
      ->capture_default_str();
  verb->callback([what, verb, &exit_code] {
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
    exit_code = kOk;
  });
  AddOps(*verb, exit_code, session);
  AddColumns(*verb, exit_code, session);
}

}  // namespace spillway::cli
