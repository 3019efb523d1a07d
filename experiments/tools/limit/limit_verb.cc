// spillway limit: the largest batch, or the deepest network, that fits.

#include "experiments/tools/limit/limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::cli {
namespace {

struct LimitOptions {
  std::string network;
  std::string vary = "batch";
  WorkloadOption lowering;
  MachineOption machine;
  FormatOption format;
  PoliciesOption policies;
  int64_t scan = 16;
  std::string output;
};

LimitSetup SetupOf(const LimitOptions& options) {
  const MachineOption& machine = options.machine;
  LimitSetup setup{options.vary == "batch" ? WorkloadFamily::OfBatches(options.network)
                                           : WorkloadFamily::OfDepths(options.network)};
  setup.preset = FindPreset(options.lowering.preset).name;
  setup.training = options.lowering.mode == "training";
  setup.run = LoadMachine(machine);
  // The other requests that `ParseMemory` takes depend on the workload.
  setup.run.memory = machine.memory.empty() ? setup.run.device.memory
                                            : ParseSize("memory", machine.memory,
                                                        "; a limit is looked for in a fixed size");
  setup.cost = machine.cost;
  setup.deterministic = machine.deterministic;
  setup.check = machine.check;
  setup.scan = options.scan;
  return setup;
}

std::string FormatLimits(const LimitSetup& setup, const std::vector<LimitResult>& results,
                         size_t width) {
  const std::string what = setup.family.deepens() ? "depth" : "batch";
  constexpr std::string_view kShown[] = {
      "policy",     "status",   "limit",  "depth",        "next",
      "scanned_to", "monotone", "trials", "iteration_ms", "peak_allocated_bytes"};
  std::string out =
      fmt::format("{} ({}, {}) on {} with {}: the largest {} that fits\n\n{}\n",
                  setup.family.text(), setup.preset, setup.training ? "training" : "inference",
                  setup.run.device.description, FormatBytes(setup.run.memory), what,
                  FormatTable(LimitColumns(setup), kShown, results, width));
  for (const LimitResult& result : results) {
    if (result.next_reason.empty()) continue;
    std::string reason = result.next_reason;
    reason.resize(std::min(reason.find(". Largest"), reason.size()));
    out += fmt::format("{} at {}: {}\n", result.policy, result.limit.largest + 1, reason);
  }
  out +=
      "\nFitting is not monotone. Each limit was seen to fit; the next value, and all up to \"none "
      "to\",\nwere seen not to. Where \"monotone\" is no, a smaller value does not fit either.\n";
  return out;
}

void Describe(const LimitOptions& options, const LimitSetup& setup,
              const std::vector<LimitResult>& results, Manifest& manifest) {
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  std::vector<std::string> policies;
  for (const LimitResult& result : results) policies.push_back(result.policy);
  manifest.configuration = {
      {"network", options.network},
      {"vary", options.vary},
      {"preset", setup.preset},
      {"mode", options.lowering.mode},
      {"device", options.machine.device},
      {"memory", fmt::format("{} B", setup.run.memory.count())},
      {"allocator", setup.run.allocator},
      {"cost", setup.cost},
      {"deterministic", flag(setup.deterministic)},
      {"charge-input", flag(setup.run.options.charge_input)},
      {"check", flag(setup.check)},
      {"scan", fmt::format("{}", setup.scan)},
      {"policy", fmt::format("{}", fmt::join(policies, " "))},
  };
  for (const LimitResult& result : results) {
    if (result.limit.largest == 0) continue;
    manifest.AddInput("trace", "generated", setup.family.At(result.limit.largest).Name());
  }
  const std::string device = DeviceBase(options.machine.device);
  const bool file = device.ends_with(".toml");
  manifest.AddInput("device", file ? "file" : "data",
                    file ? device : fmt::format("sim/devices/{}.toml", device));
  if (setup.cost != "auto" && setup.cost != "roofline")
    manifest.AddInput("cost_table", "file", setup.cost);
  for (const std::string& policy : policies) {
    if (const std::string plugin = ParsePolicySpec(policy).plugin; !plugin.empty()) {
      manifest.AddInput("policy", "file", plugin);
    }
  }
}

int Execute(const LimitOptions& options, Session& session) {
  const LimitSetup setup = SetupOf(options);
  const std::vector<std::string> policies = options.policies.policies(options.lowering.mode);
  for (const std::string& policy : policies) PolicyLibrary().Make(policy);  // bad names fail early
  const auto format = [&](const std::vector<LimitResult>& results) {
    return FormatAs(options.format.format(), LimitColumns(setup), results, "spillway.limit/v1",
                    [&] { return FormatLimits(setup, results, options.format.width()); });
  };
  std::optional<FinishedRows<LimitResult>> rows;
  rows.emplace(session, policies.size(),
               options.output.empty() ? format : FinishedRows<LimitResult>::Format());
  options.policies.ForEach(policies.size(), [&](size_t i) {
    LimitResult result = FindLimit(setup, policies[i], [&](int64_t value) {
      session.progress().Say(fmt::format("{} at {}", policies[i], value));
    });
    const int64_t largest = result.limit.largest;
    rows->Finish(i, std::move(result), policies[i],
                 largest > 0 ? fmt::format("{}", largest) : "nothing fits");
  });
  const std::vector<LimitResult> results = rows->Take();
  rows.reset();
  const bool any = std::any_of(results.begin(), results.end(),
                               [](const LimitResult& result) { return result.limit.largest > 0; });
  if (setup.check) {
    session.Remark(CheckedRemark("the reports at each limit and at the value behind it"));
  }
  return session.Finish(format(results), options.output, {}, any ? kOk : kNegative,
                        [&](Manifest& manifest) { Describe(options, setup, results, manifest); });
}

}  // namespace

void AddLimit(Command& program, Session& session) {
  Command& verb = program.Add(
      "limit", "Find the largest batch or depth that fits; exit code 1 if nothing does");
  auto& options = verb.Runs(Execute, session);
  options.machine.cost = "roofline";  // tables are recorded for few batches
  verb.Text("network", options.network,
            "batch: a network (vgg16); depth: one with a name in the place of a number, and "
            "its batch, resnet(6,32,n3,6):16")
      .Required();
  verb.Choice("--vary", options.vary, {"batch", "depth"},
              "What grows: the batch, or the number that has a name");
  options.lowering.AddLowering(verb);
  options.machine.Add(verb);
  verb.Remove("--compress");  // it does not change what fits
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
