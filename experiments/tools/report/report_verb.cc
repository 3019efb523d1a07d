// spillway report: one HTML file for runs, comparisons, sweeps and validations.

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/tools/report/page.h"
#include "experiments/tools/report/run_timeline.h"
#include "experiments/tools/report/sources.h"
#include "experiments/tools/sweep/grid.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> sources;
  WorkloadOption lowering;
  MachineOption machine;
  PoliciesOption policies;
  std::string title = "Spillway";
  std::string output;
};

bool IsResult(const std::string& source) {
  if (source.ends_with(".sqlite") || source.ends_with(".csv")) return true;
  if (!source.ends_with(".json")) return false;
  const std::string text = ReadFile(source);
  return text.substr(0, 200).find("\"schema\": \"spillway.") != std::string::npos;
}

// The comparison of the policies, and a timeline of each that fits.
void AddRuns(const std::string& workload, const ReportOptions& options, Session& session,
             std::vector<ReportSection>& sections) {
  WorkloadOption lowering = options.lowering;
  lowering.text = workload;
  session.progress().Say(workload);
  const Scenario scenario(lowering.Load(), options.machine);
  const std::vector<std::string> policies = options.policies.policies(options.lowering.mode);
  std::vector<RunResult> results(policies.size());
  std::vector<std::optional<std::string>> timelines(policies.size());
  tbb::task_arena arena(options.policies.jobs > 0 ? options.policies.jobs
                                                  : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, policies.size(), [&](size_t i) {
      results[i] = PlayForRow(scenario, policies[i], [&](const Outcome& outcome) {
        if (outcome.report.fits()) timelines[i] = TimelineJson(outcome, scenario.setup().memory);
      });
      session.progress().Advance(policies[i]);
    });
  });
  Cell cell{workload, lowering.preset, lowering.mode, options.machine, ""};
  std::string command = fmt::format("spillway compare {}", CommandOf(cell));
  for (const std::string& policy : options.policies.given) command += " --policy " + policy;
  sections.push_back({ReportSection::Kind::kResults,
                      fmt::format("{} on {}", workload, scenario.setup().device.description),
                      command, NestRows(ResultColumns(), results).json});
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!timelines[i]) continue;
    cell.policy = policies[i];
    sections.push_back(
        {ReportSection::Kind::kTimeline, fmt::format("{} under {}", workload, policies[i]),
         fmt::format("spillway run {} --explain", CommandOf(cell)), *std::move(timelines[i])});
  }
}

int Execute(const ReportOptions& options, Session& session) {
  if (PrintHelpValues(options.machine, options.policies.given)) return kOk;
  std::vector<ReportSection> sections;
  std::vector<std::string> files;
  for (const std::string& source : options.sources) {
    if (IsResult(source)) {
      sections.push_back(ReadSource(source));
      files.push_back(source);
    } else {
      AddRuns(source, options, session, sections);
    }
  }
  session.progress().Wipe();
  return session.Finish(FormatReport(options.title, sections), options.output, {}, kOk,
                        [&](Manifest& manifest) {
                          for (const std::string& file : files) {
                            manifest.AddInput("results", "file", file);
                          }
                        });
}

}  // namespace

void AddReport(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "report",
      "Write one HTML file that needs no network: tables, plots, and for workloads each run's "
      "streams, stalls and memory over time");
  auto options = std::make_shared<ReportOptions>();
  verb->add_option("sources", options->sources,
                   "Stores of sweeps (.sqlite), rows that other verbs wrote (.csv, .json), and "
                   "workloads to simulate (vgg16:64, or trace files), one or more")
      ->required();
  options->lowering.AddLowering(*verb);
  options->machine.Add(*verb);
  options->policies.Add(*verb);
  verb->add_option("--title", options->title, "Heading of the page")->capture_default_str();
  verb->add_option("-o,--output", options->output, "HTML file, with a manifest beside it")
      ->type_name("FILE")
      ->required();
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
