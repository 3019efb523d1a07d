// spillway validate: predictions checked against the GPU of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/options.h"
#include "experiments/cli/progress.h"
#include "experiments/cli/recording.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/execute.h"
#include "experiments/validate/validation.h"
#include "policies/library.h"
#include "sim/cost/table.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> workloads;
  WorkloadOption workload;  // preset and mode of all of them
  MachineOption machine;
  FormatOption format;
  std::vector<std::string> policies{"liveness"};
  std::vector<std::string> memories;
  std::string tolerance = "5%";
  RecordingOption recording;  // of what there is no table for
  std::string kernels = "real";
  std::string timeline = "events";
  bool any_table = false;
  uint64_t seed = 1;
  std::string output;
  std::string commands;
};

// "5%" as 0.05. Throws `UsageError`.
double ParseTolerance(const std::string& text) {
  try {
    size_t used = 0;
    const double percent = std::stod(text, &used);
    if (text.substr(used) == "%" && percent >= 0 && std::isfinite(percent)) return percent / 100;
  } catch (const std::logic_error&) {
  }
  throw UsageError(fmt::format("--tolerance: '{}' is no percentage such as 5%", text));
}

// The costs that the prediction is made with: the table given or found, which must be of this
// machine, else one recorded now.
CostTable TableFor(const ValidateOptions& options, const Trace& trace, const Device& device,
                   const CudaMachine& machine, Recording& recording,
                   const BackendFactories& backends, Session& session) {
  const std::string& source = options.machine.cost;
  std::optional<CostTable> table =
      source == "auto" ? FindRecordedTable(trace, device) : ReadCostTable(source);
  if (table) {
    if (!options.any_table) {
      CheckProvenance(table->provenance, machine.gpu(), machine.cudnn(),
                      options.recording.record.math);
    }
    return std::move(*table);
  }
  session.Remark(fmt::format("{}: no table for {}; recording (keep one with spillway record)",
                             trace.name, device.name));
  return options.recording.Table(recording, trace.name, {&trace, 1}, std::nullopt, device,
                                 backends);
}

// Records what policies make of the trace: slices of its ops have kernels of their own.
void AddRewritten(const ValidateOptions& options, const Trace& trace, Device device,
                  Recording& recording, CostTable& table) {
  std::vector<Trace> rewritten;
  const TableCostModel cost(table, device);
  MachineOption machine = options.machine;
  for (const std::string& memory : options.memories) {
    machine.memory = memory;
    device.memory =
        Scenario(trace, machine, std::make_unique<TableCostModel>(table, device)).setup().memory;
    for (const std::string& policy : options.policies) {
      auto made = PolicyLibrary().Make(policy)->Rewrite(trace, device, cost);
      if (made) rewritten.push_back(*std::move(made));
    }
  }
  if (rewritten.empty()) return;
  recording.Keep(table, fmt::format("the table of {}", trace.name));
  AddMissing(recording.Table(trace.name, rewritten, {}), table);
}

int Execute(ValidateOptions options, Session& session) {
  if (PrintHelpValues(options.machine, options.policies)) return kOk;
  const double tolerance = ParseTolerance(options.tolerance);
  options.recording.Check();
  const bool spin = options.kernels == "spin";
  CudaRun run{options.seed, spin ? CudaWork::kSpin : CudaWork::kKernels};
  if (options.timeline == "cupti") run.timeline = CudaTimeline::kActivity;
  run.digest = false;
  options.machine.backend = "cuda";
  if (options.memories.empty()) options.memories = {""};
  // What is misspelt is said before the GPU is opened.
  LoadDevice(options.machine.device);
  if (!spin && options.machine.cost == "roofline") {
    throw UsageError("--cost roofline: a measured run needs kernels by name; give auto or a table");
  }
  for (const std::string& policy : options.policies) PolicyLibrary().Make(policy);
  for (const std::string& workload : options.workloads) {
    options.workload.text = workload;
    for (const std::string& memory : options.memories) {
      options.machine.memory = memory;
      static_cast<void>(Scenario(options.workload.Load(), options.machine));
    }
  }
  const auto machine =
      Cuda().open({options.recording.devices.front(), options.recording.record.math, options.seed});
  BackendFactories backends;
  backends.Add("cuda", CudaFactory(machine, run));

  std::vector<ValidationResult> results;
  std::vector<ValidatedCommand> commands;
  bool agree = true;
  ProgressBar& bar = session.progress();
  const auto recording = options.recording.Open(*machine, bar);
  bar.Start(options.workloads.size() * options.policies.size() * options.memories.size());
  for (const std::string& workload : options.workloads) {
    options.workload.text = workload;
    const Trace trace = options.workload.Load();
    const Device device = LoadDevice(options.machine.device);
    std::optional<CostTable> table;
    if (!spin) table = TableFor(options, trace, device, *machine, *recording, backends, session);
    if (table) AddRewritten(options, trace, device, *recording, *table);
    for (const std::string& memory : options.memories) {
      options.machine.memory = memory;
      const Scenario scenario(trace, options.machine,
                              table ? std::make_unique<TableCostModel>(*table, device) : nullptr);
      Setup setup = scenario.setup();
      if (spin) setup.device.library_call.reset();  // busy waits call no library
      for (const std::string& policy : options.policies) {
        PolicyLibrary library;
        const auto make = [&] { return library.Make(policy); };
        Validation validation = Validate(setup, make, backends);
        for (const std::string& violation : validation.violations) {
          session.Remark(fmt::format("{} {}: {}", workload, policy, violation));
        }
        agree = agree && Agrees(validation, tolerance);
        bar.Advance(fmt::format("{} {}", workload, policy));
        if (!options.commands.empty() && validation.fits() && validation.parity()) {
          for (ValidatedCommand& command : CommandsOf(validation)) {
            command.workload = workload;
            command.policy = policy;
            command.memory = memory.empty() ? "all" : memory;
            commands.push_back(std::move(command));
          }
        }
        results.push_back(MakeValidationResult(scenario.setup(), policy, std::move(validation)));
      }
    }
  }
  bar.Wipe();
  const std::string text =
      FormatAs(options.format.format(), ValidationColumns(), results, "spillway.validation/v1",
               [&] { return FormatValidation(results); });
  const Export exported{"--export-commands", options.commands,
                        [&](const Manifest&) { return FormatCsv(CommandColumns(), commands); }};
  return session.Finish(text, options.output, {exported}, agree ? kOk : kNegative,
                        [](Manifest&) {});
}

}  // namespace

void AddValidate(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "validate",
      "Check predictions on this machine's GPU; exit code 1 out of tolerance, 5 without a GPU");
  auto options = std::make_shared<ValidateOptions>();
  verb->add_option("workloads", options->workloads, "NETWORK:BATCH or a trace file, one or more")
      ->required();
  options->workload.AddLowering(*verb);
  options->machine.AddAllButMemory(*verb);
  options->format.Add(*verb);
  verb->add_option("--policy", options->policies,
                   "NAME or PLUGIN.so:NAME, then :key=value,...; or help; repeat for more")
      ->capture_default_str();
  verb->add_option("--memory", options->memories, std::string(kMemoryHelp) + "; repeat for more")
      ->check(MemoryGiven());
  verb->add_option("--tolerance", options->tolerance, "Largest error of the iteration time")
      ->capture_default_str();
  verb->add_option("--iterations", options->machine.iterations,
                   "Iterations per case: three to warm up, the last to stamp each command, the "
                   "others timed")
      ->check(CLI::Range(kWarmUp + 2, 1000000))
      ->default_val(25);
  options->recording.Add(*verb);
  verb->add_option("--kernels", options->kernels,
                   "real, or spin: busy waits of the predicted times, for any trace")
      ->check(CLI::IsMember({"real", "spin"}))
      ->capture_default_str();
  verb->add_option("--timeline", options->timeline,
                   "Where measured times of kernels and copies come from: events around them, or "
                   "cupti, which leaves out what the GPU takes to begin and end them")
      ->check(CLI::IsMember({"events", "cupti"}))
      ->capture_default_str();
  verb->add_flag("--any-table", options->any_table,
                 "Accept a cost table of another GPU, cuDNN or arithmetic");
  verb->add_option("--seed", options->seed, "Seed of parameters, data and dropout")
      ->check(NotNegative())
      ->capture_default_str();
  AddOutput(*verb, options->output, options->format);
  AddFile(*verb, "--export-commands", options->commands,
          "Write every kernel and copy, predicted and measured, as CSV");
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
