// The verb `spillway report` writes one HTML file for runs, comparisons, sweeps and validations.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/run_result.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
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
  Case asked;
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

// Runs the workload under each policy. Adds a section with the comparison, and a timeline for each
// policy under which the workload fits. Returns the results.
std::vector<RunResult> AddRuns(const std::string& workload, const ReportOptions& options,
                               Session& session, std::vector<ReportSection>& sections) {
  const Case asked = WithWorkload(options.asked, workload);
  session.progress().Say(workload);
  const Inputs inputs(asked);
  const std::vector<std::string> policies =
      options.policies.policies(ModeOf(std::span(&inputs.trace(), 1)));
  CheckPolicies(policies, asked, inputs.trace()->training, session);
  std::vector<RunResult> results(policies.size());
  std::vector<std::optional<std::string>> timelines(policies.size());
  options.policies.ForEach(policies.size(), [&](size_t i) {
    Case one = asked;
    one.policy = policies[i];
    results[i] = RunForRow(one, inputs, [&](const Outcome& outcome) {
      if (outcome.report.fits()) timelines[i] = TimelineJson(outcome, inputs.MemoryOf(one));
    });
    session.progress().Advance(policies[i]);
  });
  const std::string& name = inputs.trace()->name;
  std::string command =
      fmt::format("spillway compare {}", CommandOf(asked, options.policies.given));
  sections.push_back({ReportSection::Kind::kResults,
                      fmt::format("{} on {}", name, inputs.device().description), command,
                      NestRows(ResultColumns(), results).json});
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!timelines[i]) continue;
    sections.push_back({ReportSection::Kind::kTimeline,
                        fmt::format("{} under {}", name, policies[i]),
                        fmt::format("spillway run {} --explain", CommandOf(asked, {policies[i]})),
                        *std::move(timelines[i])});
  }
  return results;
}

// Throws the error of a source that is neither a result nor a workload, or `UsageError` because
// there is no output.
[[noreturn]] void ThrowForNoOutput(const ReportOptions& options) {
  for (const std::string& source : options.sources) {
    if (IsResult(source)) continue;
    LoadTrace(WithWorkload(options.asked, source));
  }
  throw UsageError("--output is required");
}

int Execute(const ReportOptions& options, Session& session) {
  if (options.output.empty()) ThrowForNoOutput(options);
  CheckEnding(options.output, {".html"});
  std::vector<ReportSection> sections;
  std::vector<std::string> files;
  std::vector<RunResult> results;
  CheckPolicies(options.policies.given, options.asked, false,
                session);  // a wrong name fails before any run
  for (const std::string& source : options.sources) {
    if (IsResult(source)) {
      sections.push_back(ReadSource(source));
      files.push_back(source);
    } else {
      std::ranges::move(AddRuns(source, options, session, sections), std::back_inserter(results));
    }
  }
  session.progress().Wipe();
  const bool failed = std::ranges::any_of(results, [](auto& one) { return !one.failure.empty(); });
  const bool fits = results.empty() || std::ranges::any_of(results, &RunResult::fits);
  return session.Finish(FormatReport(options.title, sections), options.output, {},
                        failed ? kPolicyFailure
                        : fits ? kOk
                               : kNegative,
                        [&](Manifest& manifest) {
                          for (const std::string& file : files) {
                            manifest.AddInput("results", "file", file);
                          }
                        });
}

}  // namespace

void AddReport(Command& program, Session& session) {
  Command& verb = program.Add(
      "report",
      "Write one HTML file that needs no network: tables, plots, and for workloads each run's "
      "streams, stalls and memory over time; exit code 1 if no workload fits, 4 if a policy "
      "failed, which costs only its own row");
  verb.examples = {"report vgg16:64 --memory 30% -o report.html",
                   "report sweep.sqlite -o sweep.html"};
  auto& options = verb.Runs(Execute, session);
  verb.Texts(
          "sources", options.sources,
          "Stores of sweeps (.sqlite), rows that other verbs wrote (.csv, .json), and "
          "workloads to simulate (vgg16:64, or trace files, then ,option=value,...), one or more")
      .Required();
  AddCaseOptions(verb, kMachineKeys, options.asked);
  AddCaseOptions(verb, {"memory"}, options.asked);
  options.policies.Add(verb);
  verb.Text("--title", options.title, "Heading of the page");
  verb.Text("-o,--output", options.output, "HTML file, with a manifest beside it; required")
      .Type("FILE");
}

}  // namespace spillway::cli
