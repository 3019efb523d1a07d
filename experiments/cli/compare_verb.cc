// spillway compare: several policies on one workload or several, side by side.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/case_results.h"
#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/run_result.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/inputs.h"
#include "experiments/run/remedy.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> workloads;
  Case asked;
  std::vector<std::string> devices{"h200"}, memories;
  FormatOption format;
  PoliciesOption policies;
  std::string output;
};

// A result with the number of its group.
struct Row {
  size_t group;
  RunResult result;
};

// Takes analytic times for one workload on all devices if it has recorded ones on some alone:
// otherwise models would be compared, not devices.
void TakeOneMeasure(std::vector<LoadedCase>& on_devices, Session& session) {
  const auto analytic = [](const LoadedCase& one) {
    return one.inputs->cost()->Provenance().starts_with("analytic");
  };
  if (std::ranges::none_of(on_devices, analytic)) return;
  for (LoadedCase& one : on_devices) {
    if (analytic(one) || !one.asked.cost.automatic()) continue;
    session.progress().Note(fmt::format(
        "note: the kernel times of {} were recorded on {}, but not on all of these devices, and "
        "are analytic here; --device {} alone takes the recorded ones",
        WorkloadText(one.asked), one.asked.device, one.asked.device));
    one.asked.cost = "roofline";
    one.inputs = std::make_shared<const Inputs>(one.asked);
  }
}

// Returns a case for each workload on each device in each memory, in the order given.
std::vector<LoadedCase> Load(const CompareOptions& options, Session& session) {
  std::vector<LoadedCase> loaded;
  for (const std::string& workload : options.workloads) {
    session.progress().Say(workload);
    std::vector<LoadedCase> on_devices;
    for (const std::string& device : options.devices) {
      Case asked = WithWorkload(options.asked, workload);
      asked.device = device;
      on_devices.push_back({asked, std::make_shared<const Inputs>(asked)});
    }
    TakeOneMeasure(on_devices, session);
    for (auto& [asked, inputs] : on_devices) {
      if (options.memories.empty()) loaded.push_back({asked, inputs});
      for (const std::string& memory : options.memories) {
        asked.memory = memory;
        inputs->MemoryOf(asked);  // a bad budget fails early
        loaded.push_back({asked, inputs});
      }
    }
  }
  return loaded;
}

std::string Format(const std::vector<LoadedCase>& groups, const std::vector<Row>& rows,
                   const FormatOption& format) {
  std::vector<CaseResults> results;
  for (const LoadedCase& group : groups) results.push_back({group, {}});
  for (const Row& row : rows) results[row.group].results.push_back(row.result);
  return FormatResults(results, format);
}

// Throws `UsageError` if the results of the cases cannot be shown as asked for. The check comes
// before the runs, because a later failure would lose them.
void CheckViewOf(const std::vector<LoadedCase>& cases, const View& view) {
  std::vector<RunResult> rows;
  for (const auto& [asked, inputs] : cases) {
    RunResult& row = rows.emplace_back();
    static_cast<RowCase&>(row) = RowCase(asked, *inputs, *inputs->trace());
    row.failure = "has not run";
  }
  const auto none = [] { return std::string(); };
  FormatAs(view, ResultColumns(), rows, "", none);
}

// Returns a finished row in a few words.
std::string Brief(const RunResult& result) {
  if (!result.failure.empty()) return "failed";
  if (!result.fits()) return "out of memory";
  return fmt::format("{:.1f} ms, peak {}", result.iteration.milliseconds(),
                     FormatBytes(result.report.metrics.peak_allocated));
}

int Execute(const CompareOptions& options, Session& session) {
  CheckView(options.format.view(), ResultColumns());
  const std::vector<LoadedCase> groups = Load(options, session);
  std::vector<std::shared_ptr<const Trace>> traces;
  for (const LoadedCase& group : groups) traces.push_back(group.inputs->trace());
  const std::vector<std::string> policies = options.policies.policies(ModeOf(traces));
  std::vector<LoadedCase> cases;
  for (const LoadedCase& group : groups) {
    for (const std::string& policy : policies) {
      cases.push_back(group);
      cases.back().asked.policy = policy;
    }
  }
  CheckPolicies(policies, options.asked,
                std::ranges::any_of(traces, [](auto& trace) { return trace->training; }), session);
  if (options.format.view().pivot) CheckViewOf(cases, options.format.view());
  const auto format = [&](const std::vector<Row>& rows) {
    return Format(groups, rows, options.format);
  };
  std::optional<FinishedRows<Row>> rows;
  rows.emplace(session, cases.size(),
               options.output.empty() ? format : FinishedRows<Row>::Format());
  options.policies.ForEach(cases.size(), [&](size_t i) {
    const auto& [asked, inputs] = cases[i];
    Row row{i / policies.size(), {}};
    std::optional<HostRange> range;
    row.result = RunForRow(asked, *inputs, [&](const Outcome& outcome) {
      if (!IsIsolated(asked)) range = HostRangeOf(asked, *inputs, outcome);
    });
    row.result.host_range = range;
    FindNeed(asked, *inputs, row.result);
    std::string name = asked.policy.name();
    if (groups.size() > 1) {
      name = fmt::format("{} {} {} {}", WorkloadText(asked), asked.device,
                         row.result.memory_request, name);
    }
    const std::string brief = Brief(row.result);
    rows->Finish(i, std::move(row), name, brief);
  });
  const std::vector<Row> results = rows->Take();
  rows.reset();
  const auto any = [&](auto is) { return std::any_of(results.begin(), results.end(), is); };
  const bool any_fits = any([](const Row& row) { return row.result.fits(); });
  const bool failed = any([](const Row& row) { return !row.result.failure.empty(); });
  if (options.asked.check) {
    const auto checked = std::count_if(results.begin(), results.end(),
                                       [](const Row& row) { return row.result.failure.empty(); });
    session.Remark(CheckedRemark(fmt::format("{} of {} reports", checked, cases.size())));
  }
  return session.Finish(format(results), options.output, {},
                        failed     ? kPolicyFailure
                        : any_fits ? kOk
                                   : kNegative,
                        [&](Manifest& manifest) { DescribeCases(cases, manifest); });
}

}  // namespace

void AddCompare(Command& program, Session& session) {
  Command& verb = program.Add(
      "compare",
      "Simulate several policies in the same memory; exit code 1 if none fits, 4 if one failed, "
      "which costs only its own row");
  verb.examples = {"compare vgg16:64 --memory 60%",
                   "compare vgg16:64 --memory 8GiB --policy liveness,vdnnpp,mxnet"};
  auto& options = verb.Runs(Execute, session);
  verb.Texts("workloads", options.workloads,
             std::string(CaseKeyOf("workload").help) + "; one or more")
      .Required();
  AddCaseOptions(verb, kMachineKeys, options.asked);
  const CaseKey& device = CaseKeyOf("device");
  verb.Remove("--device");
  verb.Texts("--device", options.devices, std::string(device.help) + "; one or more")
      .NotEmpty(device.empty);
  const CaseKey& memory = CaseKeyOf("memory");
  verb.Texts("--memory", options.memories, std::string(memory.help) + "; one or more (30%,50%)")
      .NotEmpty(memory.empty);
  options.format.Add(verb);
  options.format.AddPivot(verb);
  options.policies.Add(verb);
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
