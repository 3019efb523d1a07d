#include "experiments/tools/sweep/grid_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "experiments/output/ranking.h"
#include "experiments/output/wrap.h"
#include "experiments/run/pattern.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"

namespace spillway::cli {

void GridOption::Add(Command& verb) {
  verb.Texts("grid", given,
             "NETWORK:BATCH with alternatives in braces "
             "('gpt2:{8,16..64..16}'), trace files, or an experiment file "
             "(.toml); or help")
      .Verbatim();
  for (const CaseKey& key : CaseKeys()) {
    const std::string name = key.name;
    if (name == "workload") continue;
    if (key.kind == CaseKey::Kind::kFlag) {
      verb.Setting(
              "--" + name, "",
              [this, name](const std::string& text) { options.values[name] = {text}; }, key.help)
          .Type("");
      continue;
    }
    std::string help = key.help;
    if (name == "policy") help += "; all if none is given";
    Option& option = verb.Setting("--" + name, "", {}, help).OneEach().Verbatim();
    option.several = true;
    option.store = [this, name](const Option::Texts& texts) { options.values[name] = texts; };
  }
  verb.Text("--shard", shard, "i/n: one of n parts of the cells");
}

Experiment GridOption::Load() const {
  Experiment experiment;
  std::vector<std::string> workloads;
  bool has_file = false;
  for (const std::string& text : given) {
    if (!text.ends_with(".toml")) {
      workloads.push_back(text);
      continue;
    }
    if (std::exchange(has_file, true)) throw UsageError("a sweep has one experiment file");
    experiment = ReadExperiment(text);
  }
  if (!workloads.empty()) experiment.values["workload"] = workloads;
  for (const auto& [key, values] : options.values) experiment.values[key] = values;
  if (!options.output.empty()) experiment.output = options.output;
  return experiment;
}

void RemarkTraining(const Experiment& experiment, const Session& session) {
  const auto policies = experiment.values.find("policy");
  if (policies == experiment.values.end()) return;
  const auto trains = [](const std::string& workload) {
    return WithWorkload({}, workload).training.value_or(true);
  };
  if (std::ranges::any_of(ExpandSpecifications(experiment.values.at("workload")), trains)) {
    RemarkTraining(ExpandSpecifications(policies->second), session);
  }
}

namespace {

using RowColumn = Column<ResultRow>;

const RowColumn& Named(const Columns<ResultRow>& columns, std::string_view name) {
  return *std::ranges::find(columns, name, &RowColumn::name);
}

Standing StandingOfRow(const ResultRow& row) {
  const Columns<ResultRow>& columns = SweepKind().columns;
  Standing standing;
  const Value status = Named(columns, "status").get(row);
  const Value missing = Named(columns, "missing_bytes").get(row);
  const Value time = Named(columns, "iteration_ms").get(row);
  standing.failed = status == Value("failed");
  if (status == Value("oom")) {
    standing.missing = Bytes(missing == Value() ? 0 : std::get<int64_t>(missing));
  }
  if (time != Value()) standing.score = std::get<double>(time);
  return standing;
}

// Returns the rows of each case, in the order of the first of them.
std::vector<std::vector<ResultRow>> CasesOf(const StoreKind& kind,
                                            const std::vector<ResultRow>& rows) {
  std::vector<std::vector<ResultRow>> cases;
  const auto same = [&](const ResultRow& a, const ResultRow& b) {
    return std::ranges::all_of(kind.cases, [&](std::string_view name) {
      const RowColumn& column = Named(kind.columns, name);
      return column.get(a) == column.get(b);
    });
  };
  for (const ResultRow& row : rows) {
    const auto of_case =
        std::ranges::find_if(cases, [&](const auto& one) { return same(one.front(), row); });
    if (of_case == cases.end()) {
      cases.push_back({row});
    } else {
      of_case->push_back(row);
    }
  }
  return cases;
}

// Returns the title of a case: "vgg16:64 (torch, training) on h200 with 7.31 GiB (60%)". The other
// options of the lowering follow the mode if they were given.
std::string TitleOfCase(const ResultRow& row) {
  const auto text = [&](std::string_view name) {
    return FormatCell(Named(SweepKind().columns, name).get(row), "");
  };
  const Value memory = Named(SweepKind().columns, "memory_bytes").get(row);
  const std::string asked = text("memory_request");
  std::string built = fmt::format("{}, {}", text("preset"), text("mode"));
  for (const char* name :
       {"attention", "optimizer", "precision", "accumulate", "clip_norm", "loss_chunks", "file"}) {
    if (text(name) != "-") built += fmt::format(", {} {}", name, text(name));
  }
  return fmt::format(
      "{} ({}) on {} with {}{}\n", text("workload"), built, text("device"),
      memory == Value() ? "unlimited memory" : FormatBytes(Bytes(std::get<int64_t>(memory))),
      asked == "-" ? "" : fmt::format(" ({})", asked));
}

// Returns one table of cases that have one row each, with the columns in which the cases differ.
std::string FormatSingleRows(const StoreKind& kind, const Columns<ResultRow>& columns,
                             const std::vector<ResultRow>& rows, size_t width) {
  Columns<ResultRow> all = columns;
  all.push_back(FitsColumn<ResultRow>(StandingOfRow));
  std::vector<std::string_view> shown;
  for (const std::string_view name : kind.cases) {
    const RowColumn& column = Named(columns, name);
    const bool differ = std::ranges::any_of(
        rows, [&](const ResultRow& row) { return column.get(row) != column.get(rows.front()); });
    if (differ) shown.push_back(name);
  }
  shown.insert(shown.end(), kind.shown.begin(), kind.shown.end());
  std::erase(shown, "best");
  return FormatTable<ResultRow>(all, shown, rows, width);
}

std::string FormatTables(const StoreKind& kind, const Columns<ResultRow>& columns,
                         const std::vector<ResultRow>& rows, size_t width) {
  if (rows.empty()) return "nothing yet\n";
  if (kind.cases.empty()) return FormatTable(columns, kind.shown, rows, width);
  const auto cases = CasesOf(kind, rows);
  if (cases.size() > 1 && cases.size() == rows.size()) {
    return FormatSingleRows(kind, columns, rows, width);
  }
  std::string text;
  for (const std::vector<ResultRow>& one : cases) {
    text += (text.empty() ? "" : "\n") + Wrapped(TitleOfCase(one.front()), width);
    text += FormatRanked<ResultRow>(columns, kind.shown, one, StandingOfRow, "the fastest", width);
  }
  return text;
}

}  // namespace

std::string FormatRows(const StoreKind& kind, const std::vector<ResultRow>& rows,
                       const FormatOption& format) {
  const Columns<ResultRow> columns = RowColumns(kind, rows);
  const bool simulated = &kind == &SweepKind();
  return FormatAs(
      format.view(), columns, rows, kind.schema,
      [&] { return FormatTables(kind, columns, rows, format.width()); },
      simulated ? std::span(kUsualColumns) : std::span(kind.shown));
}

}  // namespace spillway::cli
