// The verb `spillway limit` finds the largest batch, the deepest network or the longest sequence
// that fits.

#include "experiments/tools/limit/limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

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
  std::vector<std::string> devices;  // empty: that of `asked`
  FormatOption format;
  PoliciesOption policies;
  int64_t scan = 16;
  std::string output;
};

WorkloadFamily FamilyOf(const std::string& vary, const std::string& network) {
  if (vary == Name(LimitQuantity::kDepth)) return WorkloadFamily::OfDepths(network);
  if (vary == Name(LimitQuantity::kLength)) return WorkloadFamily::OfLengths(network);
  return WorkloadFamily::OfBatches(network);
}

// Returns one search for each device.
std::vector<LimitSearch> SearchesOf(const LimitOptions& options) {
  Case asked = options.asked;
  const WorkloadFamily family = FamilyOf(options.vary, asked.workload);
  asked.preset = FindPreset(asked.preset.value_or("torch")).name;
  // Budgets other than a size depend on the workload or do not limit memory.
  if (asked.memory)
    ParseSize("memory", asked.memory->text(), "; limit needs a fixed size of memory");
  std::vector<std::string> devices = options.devices;
  if (devices.empty()) devices.push_back(asked.device);
  std::vector<LimitSearch> searches;
  for (const std::string& device : devices) {
    asked.device = device;
    searches.push_back({family, asked, LoadMachine(asked), options.scan});
  }
  return searches;
}

std::string FormatLimits(const std::vector<LimitSearch>& searches,
                         const std::vector<LimitResult>& results, size_t width) {
  const LimitSearch& first = searches.front();
  const LimitQuantity quantity = first.family.quantity();
  const bool one = searches.size() == 1;
  std::vector<std::string_view> shown = {
      "policy", "best",   "limit", "iteration_ms", "samples_per_second", "peak_allocated_bytes",
      "depth",  "status", "next",  "scanned_to",   "monotone",           "trials"};
  if (!one) shown.insert(shown.begin(), {"device", "memory_bytes"});
  const StandingOf<LimitResult> standing = [&](const LimitResult& result) {
    Standing of;
    of.failed = result.failed;
    if (result.limit.largest == 0) of.missing = Bytes();
    of.score = -static_cast<double>(result.limit.largest);
    of.group = static_cast<size_t>(result.search - searches.data());
    return of;
  };
  const std::string place =
      one ? fmt::format(" on {} with {}", first.device.description, FormatBytes(first.memory()))
          : "";
  std::string out =
      Wrapped(fmt::format("{} ({}, {}){}: the largest {} that fits\n\n", first.family.text(),
                          *first.asked.preset, ModeOf(first.asked), place, Name(quantity)),
              width);
  Columns<LimitResult> columns = LimitColumns(quantity);
  for (Column<LimitResult>& column : columns) {
    if (column.name == "device") column.header = "device";
    if (column.name == "memory_bytes") column.header = "memory";
  }
  out += FormatRanked<LimitResult>(std::move(columns), shown, results, standing, "the largest",
                                   width) +
         "\n";
  for (const LimitResult& result : Ranked<LimitResult>(results, standing)) {
    if (result.next_brief.empty()) continue;
    const std::string at =
        result.failed ? "failed" : fmt::format("at {}", result.limit.largest + 1);
    out += CutAt(width, fmt::format("{}{} {}: {}", result.policy,
                                    one ? "" : fmt::format(" on {}", result.search->device.name),
                                    at, result.next_brief)) +
           "\n";
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
  const std::vector<LimitSearch> searches = SearchesOf(options);
  const LimitQuantity quantity = searches.front().family.quantity();
  CheckView(options.format.view(), LimitColumns(quantity));
  const std::vector<std::string> policies = options.policies.policies(ModeOf(options.asked));
  CheckPolicies(policies, options.asked, options.asked.training.value_or(true), session);
  const auto format = [&](const std::vector<LimitResult>& results) {
    return FormatAs(options.format.view(), LimitColumns(quantity), results, "spillway.limit/v1",
                    [&] { return FormatLimits(searches, results, options.format.width()); });
  };
  std::optional<FinishedRows<LimitResult>> rows;
  const size_t total = searches.size() * policies.size();
  rows.emplace(session, total,
               options.output.empty() ? format : FinishedRows<LimitResult>::Format());
  options.policies.ForEach(total, [&](size_t i) {
    const LimitSearch& search = searches[i / policies.size()];
    const std::string& policy = policies[i % policies.size()];
    const std::string name =
        searches.size() == 1 ? policy : fmt::format("{} on {}", policy, search.device.name);
    LimitResult result = FindLimit(search, policy, [&](int64_t value) {
      session.progress().Say(fmt::format("{} at {}", name, value));
    });
    const int64_t largest = result.limit.largest;
    const bool failed = result.failed;
    rows->Finish(i, std::move(result), name,
                 failed        ? "failed"
                 : largest > 0 ? fmt::format("{}", largest)
                               : "nothing fits");
  });
  const std::vector<LimitResult> results = rows->Take();
  rows.reset();
  const bool any = std::any_of(results.begin(), results.end(),
                               [](const LimitResult& result) { return result.limit.largest > 0; });
  const bool failed = std::ranges::any_of(results, &LimitResult::failed);
  if (options.asked.check && !failed) {
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
  Command& verb =
      program.Add("limit",
                  "Find the largest batch, depth or length that fits; exit code 1 if nothing "
                  "does, 4 if a policy failed, "
                  "which costs only its own row");
  verb.examples = {"limit vgg16 --device titan_xp --policy liveness,mxnet",
                   "limit gpt2:8 --vary length --policy liveness --device h100,h200"};
  auto& options = verb.Runs(Execute, session);
  options.asked.cost = "roofline";  // cost tables exist for few batches
  verb.Setting(
          "network", "", [&](const std::string& text) { SetWorkload(options.asked, text); },
          "A network (vgg16), with --vary depth a network with a name in place of one number, and "
          "its batch (resnet(6,32,n3,6):16), or with --vary length a transformer for text and its "
          "batch (gpt2:8), then ,option=value,...; or help")
      .Required();
  verb.Choice("--vary", options.vary, {"batch", "depth", "length"},
              "The number that grows: the batch, the named number of the network, or the tokens of "
              "a sequence");
  AddCaseOptions(verb, kMachineKeys, options.asked);
  verb.Remove("--device");
  verb.Texts("--device", options.devices,
             "NAME or FILE.toml, then :key=value,... for changes; or help; one or more (default: "
             "h200)");
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
