// spillway compare: several policies on one workload, side by side.

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <optional>

#include "experiments/cli/options.h"
#include "experiments/cli/progress.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"

namespace spillway::cli {
namespace {

struct CompareOptions {
  WorkloadOption workload;
  MachineOption machine;
  FormatOption format;
  PoliciesOption policies;
  std::string output;
};

int Execute(const CompareOptions& options, Session& session) {
  if (PrintHelpValues(options.machine, options.policies.given)) return kOk;
  const Scenario scenario(options.workload.Load(), options.machine);
  const std::vector<std::string> policies = options.policies.policies();
  std::vector<RunResult> results(policies.size());
  std::optional<ProgressBar> progress(std::in_place, policies.size(), options.policies.quiet);
  tbb::task_arena arena(options.policies.jobs > 0 ? options.policies.jobs
                                                  : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, policies.size(), [&](size_t i) {
      results[i] = ResultOf(scenario, policies[i], scenario.Play(policies[i]));
      progress->Advance(policies[i]);
    });
  });
  progress.reset();
  const bool any_fits = std::any_of(results.begin(), results.end(),
                                    [](const RunResult& result) { return result.fits(); });
  return session.Finish(FormatResults(scenario, results, options.format.format()), options.output,
                        {}, any_fits ? kOk : kNegative, [&](Manifest& manifest) {
                          DescribeRun(options.workload, options.machine, scenario, policies,
                                      manifest);
                        });
}

}  // namespace

void AddCompare(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Simulate several policies, all in the same memory; exit code 1 if none fits");
  auto options = std::make_shared<CompareOptions>();
  options->workload.Add(*verb);
  options->machine.Add(*verb);
  options->format.Add(*verb);
  options->policies.Add(*verb);
  AddOutput(*verb, options->output);
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
