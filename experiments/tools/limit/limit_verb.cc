// The verb `spillway limit` finds the largest batch, or the deepest network, that fits.

#include "experiments/tools/limit/limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/case_results.h"
#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/ranking.h"
#include "experiments/output/wrap.h"
#include "experiments/run/data_files.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::cli {
namespace {

struct LimitOptions {
  std::string vary = "batch";
  Case asked;
  FormatOption format;
  PoliciesOption policies;
  int64_t scan = 16;
  std::string output;
};

LimitSearch SearchOf(const LimitOptions& options) {
  const std::string& network = options.asked.workload;
  LimitSearch search{options.vary == "batch" ? WorkloadFamily::OfBatches(network)
                                             : WorkloadFamily::OfDepths(network),
                     options.asked, LoadMachine(options.asked), options.scan};
  search.asked.preset = FindPreset(options.asked.preset.value_or("torch")).name;
  // Budgets other than a size depend on the workload or do not limit memory.
  if (search.asked.memory) {
    ParseSize("memory", search.asked.memory->text(), "; limit needs a fixed size of memory");
  }
  return search;
}

std::string FormatLimits(const LimitSearch& search, const std::vector<LimitResult>& results,
                         size_t width) {
  const std::string what = search.family.deepens() ? "depth" : "batch";
  constexpr std::string_view kShown[] = {
      "policy", "best",   "limit", "iteration_ms", "samples_per_second", "peak_allocated_bytes",
      "depth",  "status", "next",  "scanned_to",   "monotone",           "trials"};
  const StandingOf<LimitResult> standing = [](const LimitResult& result) {
    Standing one;
    one.failed = result.failed;
    if (result.limit.largest == 0) one.missing = Bytes();
    one.score = -static_cast<double>(result.limit.largest);
    return one;
  };
  std::string out =
      Wrapped(fmt::format("{} ({}, {}) on {} with {}: the largest {} that fits\n\n",
                          search.family.text(), *search.asked.preset, ModeOf(search.asked),
                          search.device.description, FormatBytes(search.memory()), what),
              width);
  out += FormatRanked<LimitResult>(LimitColumns(search), kShown, results, standing, "the largest",
                                   width) +
         "\n";
  for (const LimitResult& result : Ranked<LimitResult>(results, standing)) {
    if (result.next_brief.empty()) continue;
    const std::string at =
        result.failed ? "failed" : fmt::format("at {}", result.limit.largest + 1);
    out += CutAt(width, fmt::format("{} {}: {}", result.policy, at, result.next_brief)) + "\n";
  }
  return out + Wrapped(
                   "\nFitting is not monotone. Each limit fits in a run; no value from the next "
                   "one up to "
                   "\"none to\" fits. If \"monotone\" is no, a value below the limit does not fit "
                   "either.",
                   width);
}

void Describe(const LimitOptions& options, const std::vector<LimitResult>& results,
              Manifest& manifest) {
  std::vector<LoadedCase> cases;
  for (const LimitResult& result : results) cases.push_back(result.at);
  DescribeCases(cases, manifest);
  manifest.configuration.emplace_back("network", WorkloadText(options.asked));
  manifest.configuration.emplace_back("vary", options.vary);
  manifest.configuration.emplace_back("scan", fmt::format("{}", options.scan));
}

int Execute(const LimitOptions& options, Session& session) {
  const LimitSearch search = SearchOf(options);
  CheckView(options.format.view(), LimitColumns(search));
  const std::vector<std::string> policies = options.policies.policies(ModeOf(options.asked));
  CheckPolicies(policies, options.asked, options.asked.training.value_or(true), session);
  const auto format = [&](const std::vector<LimitResult>& results) {
    return FormatAs(options.format.view(), LimitColumns(search), results, "spillway.limit/v1",
                    [&] { return FormatLimits(search, results, options.format.width()); });
  };
  std::optional<FinishedRows<LimitResult>> rows;
  rows.emplace(session, policies.size(),
               options.output.empty() ? format : FinishedRows<LimitResult>::Format());
  options.policies.ForEach(policies.size(), [&](size_t i) {
    LimitResult result = FindLimit(search, policies[i], [&](int64_t value) {
      session.progress().Say(fmt::format("{} at {}", policies[i], value));
    });
    const int64_t largest = result.limit.largest;
    const bool failed = result.failed;
    rows->Finish(i, std::move(result), policies[i],
                 failed        ? "failed"
                 : largest > 0 ? fmt::format("{}", largest)
                               : "nothing fits");
  });
  const std::vector<LimitResult> results = rows->Take();
  rows.reset();
  const bool any = std::any_of(results.begin(), results.end(),
                               [](const LimitResult& result) { return result.limit.largest > 0; });
  const bool failed = std::ranges::any_of(results, &LimitResult::failed);
  if (search.asked.check && !failed) {
    session.Remark(CheckedRemark("the reports at each limit and at the value behind it"));
  }
  return session.Finish(format(results), options.output, {},
                        failed ? kPolicyFailure
                        : any  ? kOk
                               : kNegative,
                        [&](Manifest& manifest) { Describe(options, results, manifest); });
}

}  // namespace

void AddLimit(Command& program, Session& session) {
  Command& verb = program.Add("limit",
                              "Find the largest batch or depth that fits; exit code 1 if nothing "
                              "does, 4 if a policy failed, "
                              "which costs only its own row");
  verb.examples = {"limit vgg16 --device titan_xp --policy liveness,mxnet",
                   "limit 'resnet(2,2,n3,2):8' --vary depth --policy liveness --memory 1GiB"};
  auto& options = verb.Runs(Execute, session);
  options.asked.cost = "roofline";  // cost tables exist for few batches
  verb.Setting(
          "network", "", [&](const std::string& text) { SetWorkload(options.asked, text); },
          "A network (vgg16), or with --vary depth a network with a name in place of one "
          "number, and its batch (resnet(6,32,n3,6):16), then ,option=value,...; or help")
      .Required();
  verb.Choice("--vary", options.vary, {"batch", "depth"},
              "The number that grows: the batch, or the named number of the network");
  AddCaseOptions(verb, kMachineKeys, options.asked);
  AddCaseOptions(verb, {"memory"}, options.asked);
  verb.Declared("--cost").initial = "roofline";
  verb.Remove("--compress");  // compression does not change which values fit
  verb.Declared("--check").Help(
      "Verify the runs at the limit and at the next value with the independent checker");
  verb.Declared("--memory").Help("Device memory: a size (12GiB); default: the device's");
  options.format.Add(verb);
  options.policies.Add(verb);
  verb.Number("--scan", options.scan, {1, 100000},
              "How many values above the limit must not fit: fitting is not monotone");
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
