// spillway fit: whether a workload fits under PyTorch's allocator, device by device, and what would
// make it fit.

#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
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

Bytes OutsideOf(const FitVerbOptions& options) {
  try {
    return ParseBytes(options.outside);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("outside: {}", error.what()));
  }
}

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
  MachineOption asked;
  for (const std::string& device : options.devices) {
    if (device == "help") asked.device = device;
  }
  if (PrintHelpValues(asked, options.policies.given)) return kOk;
  const std::vector<std::string> policies = options.policies.policies(options.lowering.mode);
  for (const std::string& policy : policies) PolicyLibrary().Make(policy);  // bad names fail early
  const std::vector<std::string> devices =
      options.devices.empty() ? DeviceNames() : SplitSpecifications(options.devices);
  for (const std::string& device : devices) LoadDevice(device);  // likewise
  const FitOptions search{policies, OutsideOf(options), options.policies.jobs};

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

void AddFit(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "fit",
      "Whether a workload fits under PyTorch's allocator, and what makes it fit; exit code 1 if "
      "none fits on any of the devices as it is");
  auto options = std::make_shared<FitVerbOptions>();
  verb->add_option("workloads", options->workloads,
                   "A trace file (.json, .json.zst) or NETWORK:BATCH, one or more: those of one "
                   "network with a smaller batch are a change that may make another fit")
      ->required();
  options->lowering.AddLowering(*verb);
  verb->add_option("--device", options->devices,
                   "NAME or FILE.toml; or help; several separated by commas (default: every device "
                   "that comes with the program)");
  verb->add_option("--outside", options->outside,
                   "Device memory that is held beside the allocator: contexts, libraries, other "
                   "processes")
      ->capture_default_str();
  options->format.Add(*verb);
  options->policies.Add(*verb);
  verb->get_option("--policy")
      ->description(
          "What to try where the workload does not fit as it is: NAME or PLUGIN.so:NAME, then "
          ":key=value,...; or help; repeat for more (default: all of the mode but joint)");
  AddOutput(*verb, options->output, options->format);
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
