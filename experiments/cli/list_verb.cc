// spillway list: prints the names that options take.

#include <fmt/format.h>

#include <array>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/descriptions.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/run_result.h"
#include "traces/ops/op_table.h"

namespace spillway::cli {
namespace {

// Returns the operands as "x weight bias?fused_update&bias", with " ..." at the end if they repeat.
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

// Returns the operands of forward that backward reads, without operands under a condition.
std::string SavedBy(const OpRow& row) {
  std::vector<std::string_view> saved;
  for (const Operand& operand : row.backward.inputs.span()) {
    const bool comes_back =
        row.forward.inputs.Has(operand.role) || row.forward.outputs.Has(operand.role);
    if (comes_back && operand.when.empty()) saved.push_back(Name(operand.role));
  }
  return fmt::format("{}", fmt::join(saved, " "));
}

// A step of an op type.
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
  constexpr std::array<std::string_view, 4> kKinds{"", ":number", ":flag", ":optional"};
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
      {"inputs", "", "operands that the step reads",
       [](const S& of) { return Spell(of.step().inputs); }, "inputs"},
      {"outputs", "", "operands that the step writes",
       [](const S& of) { return Spell(of.step().outputs); }, "outputs"},
      {"slots", "", "library calls of the step", SlotsOf, "slots"},
      {"attributes", "", "of the op", AttributesOf},
      {"geometry", "", "of its signature", [](const S& of) { return of.row->geometry; }},
      {"saved", "", "operands of forward that backward reads",
       [](const S& of) { return SavedBy(*of.row); }},
      {"library", "", "that launches it", library},
      {"algorithms", "", "true if the library offers several algorithms",
       [](const S& of) { return of.row->algorithms; }},
      {"deterministic", "", "gives the same bits on every run",
       [](const S& of) { return of.row->deterministic; }},
      {"cheap", "", "to recompute", [](const S& of) { return of.row->cheap; }},
      {"stays_fp32", "", "true if precision=bf16 leaves what the layer owns in float32",
       [](const S& of) { return of.row->stays_fp32; }},
      {"on_gpu", "", "true if the CUDA backend executes it",
       [](const S& of) { return of.row->on_gpu; }},
      {"whole_batch", "", "condition under which the batch cannot be split",
       [when](const S& of) { return when(of.step().whole_batch); }},
      {"overwrites_x", "", "rules under which the op overwrites x",
       [](const S& of) { return Spell(of.row->overwrites_x); }},
      {"overwrites_dy", "", "rules under which the op overwrites dy",
       [](const S& of) { return Spell(of.row->overwrites_dy); }},
      {"holds_x", "", "rules under which the op holds x",
       [](const S& of) { return Spell(of.row->holds_x); }},
      {"holds_y", "", "rules under which the op holds y",
       [](const S& of) { return Spell(of.row->holds_y); }},
  };
}

// Prints the rows: a table shows the columns `shown`, CSV and JSON have all.
template <typename Row, typename Rows>
int Print(const FormatOption& format, const Columns<Row>& columns, const Rows& rows,
          std::span<const std::string_view> shown, std::string_view schema, Session& session) {
  return session.Finish(FormatAs(format.view(), columns, rows, schema,
                                 [&] { return FormatTable(columns, shown, rows); }),
                        kOk);
}

void AddOps(Command& list, Session& session) {
  Command& verb = list.Add(
      "ops", "List the op types of traces: their operands, and in CSV and JSON all their columns");
  verb.examples = {"list ops", "list ops --format csv"};
  auto& format = verb.Keep<FormatOption>();
  format.Add(verb);
  verb.Runs([&format, &session] {
    std::vector<OpTypeStep> steps;
    for (const OpRow& row : kOpTable) {
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
        if (row.step(phase).exists()) steps.push_back({&row, phase});
      }
    }
    constexpr std::string_view kShown[] = {"type", "phase", "inputs", "outputs", "slots"};
    return Print(format, OpColumns(), steps, kShown, "spillway.ops/v1", session);
  });
}

// The columns of the results of `run` and `compare`.
void AddColumns(Command& list, Session& session) {
  Command& verb = list.Add("columns", "List the columns of results, with unit and meaning");
  verb.examples = {"list columns", "list columns --format csv"};
  auto& format = verb.Keep<FormatOption>();
  format.Add(verb);
  verb.Runs([&format, &session] {
    using Result = Column<RunResult>;
    const Columns<Result> columns{
        {"name", "", "in CSV and JSON", &Result::name, "column"},
        {"unit", "", "ms or B; 1 for ratios and counts", &Result::unit, "unit"},
        {"type", "", "in JSON", &Result::type},
        {"help", "", "meaning of the column", &Result::help, "meaning"},
    };
    constexpr std::string_view kShown[] = {"name", "unit", "help"};
    return Print(format, columns, ResultColumns(), kShown, "spillway.columns/v1", session);
  });
}

}  // namespace

void AddList(Command& program, Session& session) {
  Command& verb = program.Add("list", "List networks, policies, devices and more");
  verb.examples = {"list policies", "list devices"};
  auto& what = verb.Keep<std::string>();
  what = "all";
  verb.Choice("what", what,
              {"all", "networks", "workloads", "presets", "policies", "devices", "allocators"},
              "Kind of names to list");
  verb.Runs([&what, &session] {
    std::string text;
    const auto add = [&](const char* name, std::string (*describe)()) {
      if (what == name) text = describe();
      if (what == "all") text += fmt::format("== {} ==\n{}\n", name, describe());
    };
    add("networks", DescribeNetworks);
    add("workloads", DescribeWorkloads);
    add("presets", DescribePresets);
    add("policies", DescribePolicies);
    add("devices", DescribeDevices);
    add("allocators", DescribeAllocators);
    return session.Finish(text, kOk);
  });
  AddOps(verb, session);
  AddColumns(verb, session);
}

}  // namespace spillway::cli
