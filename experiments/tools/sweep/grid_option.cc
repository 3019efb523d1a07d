#include "experiments/tools/sweep/grid_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"

namespace spillway::cli {

void GridOption::Add(CLI::App& verb) {
  verb.add_option("grid", given,
                  "NETWORK:BATCH with alternatives in braces ('resnet50:{16,32,64..256..32}'), "
                  "trace files, or an experiment file (.toml)");
  for (const ExperimentList& list : ExperimentLists()) {
    if (list.values == &Experiment::workloads) continue;
    const std::string more = list.commas ? "; several by commas or given again" : "";
    verb.add_option(fmt::format("--{}", list.name), options.*list.values, list.help + more)
        ->allow_extra_args(false);
  }
  for (const ExperimentFlag& flag : ExperimentFlags()) {
    verb.add_flag(fmt::format("--{}", flag.name), options.*flag.value, flag.help);
  }
  verb.add_option("--shard", shard, "i/n: one of n parts of the cells")->capture_default_str();
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

bool GridOption::PrintHelp() const {
  const auto asked = [](const std::vector<std::string>& values) {
    return std::ranges::count(values, "help") > 0;
  };
  MachineOption machine;
  if (asked(options.devices)) machine.device = "help";
  if (asked(options.allocators)) machine.allocator = "help";
  if (asked(options.compress)) machine.compress = "help";
  machine.pools = options.pools;
  return PrintHelpValues(machine, options.policies);
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
