#include "experiments/tools/sweep/grid_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"

namespace spillway::cli {

void GridOption::Add(Command& verb) {
  verb.Texts("grid", given,
             "NETWORK:BATCH with alternatives in braces ('resnet50:{16,32,64..256..32}'), "
             "trace files, or an experiment file (.toml)")
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
  const auto policies = experiment.values.find("policy"), modes = experiment.values.find("mode");
  if (policies == experiment.values.end()) return;
  const bool training = modes == experiment.values.end() ||
                        std::ranges::count(ExpandSpecifications(modes->second), "training") > 0;
  if (training) RemarkTraining(ExpandSpecifications(policies->second), session);
}

std::string FormatRows(const StoreKind& kind, const std::vector<ResultRow>& rows,
                       const FormatOption& format) {
  const Columns<ResultRow> columns = RowColumns(kind, rows);
  const auto table = [&] {
    return rows.empty() ? std::string("nothing yet\n")
                        : FormatTable(columns, kind.shown, rows, format.width());
  };
  const bool simulated = &kind == &SweepKind();
  return FormatAs(format.view(), columns, rows, kind.schema, table,
                  simulated ? std::span(kUsualColumns) : std::span(kind.shown));
}

}  // namespace spillway::cli
