// spillway run: one policy on one workload.

#include "experiments/cli/options.h"
#include "experiments/cli/verbs.h"

namespace spillway::cli {
namespace {

struct RunOptions {
  WorkloadOption workload;
  MachineOption machine;
  FormatOption format;
  std::string policy = "liveness";
};

int Execute(const RunOptions& options) {
  if (PrintHelpValues(options.machine, {options.policy})) return kOk;
  const Scenario scenario(options.workload, options.machine);
  const Row row = scenario.Run(options.policy);
  PrintResults(scenario, {row}, options.format.format());
  const auto status = std::find_if(row.begin(), row.end(),
                                   [](const Column& column) { return column.name == "status"; });
  return status->value == Value(std::string("ok")) ? kOk : kNegative;
}

}  // namespace

void AddRun(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("run", "Simulate one policy; exit code 1 if it does not fit");
  auto options = std::make_shared<RunOptions>();
  options->workload.Add(*verb);
  options->machine.Add(*verb);
  options->format.Add(*verb);
  verb->add_option("--policy", options->policy,
                   "NAME or PLUGIN.so:NAME, then :key=value,...; or help")
      ->capture_default_str();
  verb->callback([options, &exit_code] { exit_code = Execute(*options); });
}

}  // namespace spillway::cli
