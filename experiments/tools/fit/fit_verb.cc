// spillway fit: whether a workload fits under PyTorch's allocator, device by device, and what would
// make it fit.

#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/catalogue.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct FitVerbOptions {
  std::vector<std::string> workloads;
  WorkloadOption lowering;
  std::vector<std::string> devices;
  std::string outside = "0B";
  FormatOption format;
  PoliciesOption policies;
  std::string output;
};

void Describe(const FitVerbOptions& options, const std::vector<std::string>& devices,
              const std::vector<std::string>& policies, Manifest& manifest) {
  manifest.configuration = {
      {"workload", fmt::format("{}", fmt::join(options.workloads, " "))},
      {"preset", options.lowering.preset},
      {"mode", options.lowering.mode},
      {"device", fmt::format("{}", fmt::join(devices, " "))},
      {"outside", options.outside},
      {"policy", fmt::format("{}", fmt::join(policies, " "))},
  };
  for (const std::string& workload : options.workloads) {
    const bool file = workload.ends_with(".json") || workload.ends_with(".zst");
    manifest.AddInput("trace", file ? "file" : "generated", workload);
  }
  for (const std::string& device : devices) {
    const std::string base = DeviceBase(device);
    const bool file = base.ends_with(".toml");
    manifest.AddInput("device", file ? "file" : "data",
                      file ? base : fmt::format("sim/devices/{}.toml", base));
  }
  for (const std::string& policy : policies) {
    if (const std::string plugin = ParsePolicySpec(policy).plugin; !plugin.empty()) {
      manifest.AddInput("policy", "file", plugin);
    }
  }
}

int Execute(const FitVerbOptions& options, Session& session) {
  const std::vector<std::string> policies = options.policies.policies(options.lowering.mode);
  for (const std::string& policy : policies) PolicyLibrary().Make(policy);  // bad names fail early
  const std::vector<std::string> devices =
      options.devices.empty() ? DeviceNames() : SplitSpecifications(options.devices);
  for (const std::string& device : devices) LoadDevice(device);  // likewise
  const FitOptions search{policies, ParseSize("outside", options.outside), options.policies.jobs};

  std::vector<FitWorkload> workloads;
  for (const std::string& workload : options.workloads) {
    WorkloadOption one = options.lowering;
    one.text = workload;
    workloads.push_back({workload, std::make_shared<const Trace>(one.Load())});
  }
  std::vector<Fit> fits;
  for (const std::string& device : devices) {
    std::vector<Fit> found = FindFits(
        workloads, device, search, [&](const std::string& what) { session.progress().Say(what); });
    std::ranges::move(found, std::back_inserter(fits));
  }
  session.progress().Wipe();
  const bool any = std::ranges::any_of(
      fits, [](const Fit& fit) { return fit.as_it_is.status != FitStatus::kNot; });
  return session.Finish(
      FormatAs(options.format.format(), FitColumns(), RowsOf(fits), "spillway.fit/v1",
               [&] { return FormatFits(fits, options.format.width()); }),
      options.output, {}, any ? kOk : kNegative,
      [&](Manifest& manifest) { Describe(options, devices, policies, manifest); });
}

}  // namespace

void AddFit(Command& program, Session& session) {
  Command& verb = program.Add(
      "fit",
      "Whether a workload fits under PyTorch's allocator, and what makes it fit; exit code 1 if "
      "none fits on any of the devices as it is");
  auto& options = verb.Runs(Execute, session);
  verb.Texts("workloads", options.workloads,
             "A trace file (.json, .json.zst) or NETWORK:BATCH, one or more: a network with a "
             "smaller batch is a change that may make the one with a larger batch fit")
      .Required();
  options.lowering.AddLowering(verb);
  verb.Texts("--device", options.devices,
             "NAME or FILE.toml; or help; several separated by commas (default: every device "
             "that comes with the program)");
  verb.Text("--outside", options.outside,
            "Device memory that is held beside the allocator: contexts, libraries, other "
            "processes");
  options.format.Add(verb);
  options.policies.Add(verb);
  verb.Declared("--policy")
      .Help(
          "Policies to try if the workload does not fit as it is: NAME or PLUGIN.so:NAME, then "
          ":key=value,...; or help; repeat for more (default: all of the mode but joint)");
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
