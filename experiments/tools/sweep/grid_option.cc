#include "experiments/tools/sweep/grid_option.h"

#include <fmt/format.h>

#include <utility>

#include "traces/base/error.h"

namespace spillway::cli {

void GridOption::Add(Command& verb) {
  verb.Texts("grid", given,
             "NETWORK:BATCH with alternatives in braces ('resnet50:{16,32,64..256..32}'), "
             "trace files, or an experiment file (.toml)");
  for (const ExperimentList& list : ExperimentLists()) {
    if (list.values == &Experiment::workloads) continue;
    const std::string more = list.commas ? "; several by commas or given again" : "";
    verb.Texts(fmt::format("--{}", list.name), options.*list.values, list.help + more).OneEach();
  }
  for (const ExperimentFlag& flag : ExperimentFlags()) {
    verb.Flag(fmt::format("--{}", flag.name), options.*flag.value, flag.help);
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
  if (!workloads.empty()) experiment.workloads = workloads;
  for (const ExperimentList& list : ExperimentLists()) {
    if (!(options.*list.values).empty()) experiment.*list.values = options.*list.values;
  }
  for (const ExperimentFlag& flag : ExperimentFlags()) {
    experiment.*flag.value = experiment.*flag.value || options.*flag.value;
  }
  if (!options.output.empty()) experiment.output = options.output;
  return experiment;
}

std::string FormatRows(const StoreKind& kind, const std::vector<ResultRow>& rows,
                       const FormatOption& format) {
  const Columns<ResultRow> columns = RowColumns(kind, rows);
  return FormatAs(format.format(), columns, rows, kind.schema, [&] {
    return rows.empty() ? std::string("nothing yet\n")
                        : FormatTable(columns, kind.shown, rows, format.width());
  });
}

}  // namespace spillway::cli
