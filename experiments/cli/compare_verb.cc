// spillway compare: several policies on one workload or several, side by side.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> workloads;
  WorkloadOption lowering;
  MachineOption machine;
  std::vector<std::string> memories;
  FormatOption format;
  PoliciesOption policies;
  std::string output;
};

// A result with the number of its scenario.
struct Row {
  size_t scenario;
  RunResult result;
};

// A scenario for each workload in each memory, in the order given.
struct Scenarios {
  std::deque<Scenario> scenarios;
  std::vector<NamedScenario> named;
};

Scenarios Load(CompareOptions options, Session& session) {
  Scenarios loaded;
  std::vector<std::string> memories = SplitSpecifications(options.memories);
  if (memories.empty()) memories.emplace_back();
  for (const std::string& workload : options.workloads) {
    options.lowering.text = workload;
    session.progress().Say(workload);
    const Trace trace = options.lowering.Load();
    for (const std::string& memory : memories) {
      if (memory.empty() && !options.memories.empty()) {
        throw UsageError(fmt::format("--memory: '{}' has an empty place in its list",
                                     fmt::join(options.memories, " ")));
      }
      options.machine.memory = memory;
      loaded.scenarios.emplace_back(trace, options.machine);
      loaded.named.push_back({workload, &loaded.scenarios.back()});
    }
  }
  return loaded;
}

std::string Format(const std::vector<NamedScenario>& scenarios, const std::vector<Row>& rows,
                   const FormatOption& format) {
  std::vector<ScenarioResults> groups;
  for (const NamedScenario& named : scenarios) groups.push_back({named.scenario, {}});
  for (const Row& row : rows) groups[row.scenario].results.push_back(row.result);
  return FormatResults(groups, format);
}

// Returns a finished row in a few words.
std::string Brief(const RunResult& result) {
  if (!result.failure.empty()) return "failed";
  if (!result.fits()) return "out of memory";
  return fmt::format("{:.1f} ms, peak {}", result.iteration.milliseconds(),
                     FormatBytes(result.report.metrics.peak_allocated));
}

int Execute(const CompareOptions& options, Session& session) {
  const Scenarios loaded = Load(options, session);
  const bool recorded = std::ranges::all_of(loaded.named, [](const NamedScenario& named) {
    return named.scenario->setup().trace->recording.has_value();
  });
  const std::vector<std::string> policies =
      options.policies.policies(recorded ? "recorded" : std::string_view(options.lowering.mode));
  for (const std::string& policy : policies) {
    try {
      PolicyLibrary().Make(policy);  // names and plugins that are wrong fail early
    } catch (const PolicyError&) {   // the row of the policy says why
    }
  }
  const auto format = [&](const std::vector<Row>& rows) {
    return Format(loaded.named, rows, options.format);
  };
  const size_t total = loaded.named.size() * policies.size();
  std::optional<FinishedRows<Row>> rows;
  rows.emplace(session, total, options.output.empty() ? format : FinishedRows<Row>::Format());
  options.policies.ForEach(total, [&](size_t i) {
    const std::string& policy = policies[i % policies.size()];
    const auto& [workload, scenario] = loaded.named[i / policies.size()];
    Row row{i / policies.size(), PlayForRow(*scenario, policy)};
    std::string name = policy;
    if (loaded.named.size() > 1) {
      name = fmt::format("{} {} {}", workload, scenario->setup().memory_request, policy);
    }
    const std::string brief = Brief(row.result);
    rows->Finish(i, std::move(row), name, brief);
  });
  const std::vector<Row> results = rows->Take();
  rows.reset();
  const auto any = [&](auto is) { return std::any_of(results.begin(), results.end(), is); };
  const bool any_fits = any([](const Row& row) { return row.result.fits(); });
  const bool failed = any([](const Row& row) { return !row.result.failure.empty(); });
  if (options.machine.check) {
    const auto checked = std::count_if(results.begin(), results.end(),
                                       [](const Row& row) { return row.result.failure.empty(); });
    session.Remark(CheckedRemark(fmt::format("{} of {} reports", checked, total)));
  }
  return session.Finish(
      format(results), options.output, {},
      failed     ? kPolicyFailure
      : any_fits ? kOk
                 : kNegative,
      [&](Manifest& manifest) { DescribeRun(loaded.named, options.machine, policies, manifest); });
}

}  // namespace

void AddCompare(Command& program, Session& session) {
  Command& verb = program.Add(
      "compare",
      "Simulate several policies in the same memory; exit code 1 if none fits, 4 if one failed, "
      "which costs only its own row");
  auto& options = verb.Runs(Execute, session);
  verb.Texts("workloads", options.workloads,
             "NETWORK:BATCH (vgg16:256) or a trace file (.json, .json.zst), one or more")
      .Required();
  options.lowering.AddLowering(verb);
  options.machine.Add(verb);
  verb.Remove("--memory");
  verb.Texts("--memory", options.memories,
             std::string(kMemoryHelp) + "; several separated by commas (30%,50%)")
      .NotEmpty(kNoMemory);
  options.format.Add(verb);
  options.policies.Add(verb);
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
