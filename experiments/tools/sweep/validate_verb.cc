// spillway validate: predictions checked against the GPU of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/commit.h"
#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/execute.h"
#include "experiments/tools/measure/recording_option.h"
#include "experiments/tools/measure/validation.h"
#include "experiments/tools/sweep/grid_option.h"
#include "experiments/tools/sweep/validations.h"
#include "policies/plugin/library.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct ValidateOptions : GridOption {
  FormatOption format;
  int iterations = 0;
  std::string tolerance = "5%";
  RecordingOption recording;  // of what there is no table for
  std::string kernels = "real";
  std::string timeline = "events";
  bool any_table = false;
  uint64_t seed = 1;
  std::string commands;

  bool spin() const { return kernels == "spin"; }
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

// Measures one cell after the other on the GPU of this machine.
class Measuring {
 public:
  // With the cell that is measured first, after which the machine is chosen.
  Measuring(const ValidateOptions& options, const Cell& first, Session& session)
      : options_(options),
        session_(session),
        machine_(Cuda().open({options.recording.devices.front(), options.recording.record.math,
                              options.seed,
                              /*short_copies=*/first.mode == "inference"})),
        recording_(options_.recording.Open(*machine_, session.progress())) {
    CudaRun run{options.seed, options.spin() ? CudaWork::kSpin : CudaWork::kKernels};
    if (options.timeline == "cupti") run.timeline = CudaTimeline::kActivity;
    run.digest = false;
    backends_.Add("cuda", CudaFactory(machine_, run));
  }

  // What measures, as far as results depend on it.
  std::string machine() const {
    return fmt::format("{}, cuDNN {}", machine_->gpu(), machine_->cudnn());
  }

  const std::vector<ValidatedCommand>& commands() const { return commands_; }

  ValidationResult Measure(const Cell& cell, const std::shared_ptr<const Trace>& trace) {
    MachineText text = cell.machine;
    text.backend = "cuda";
    text.iterations = options_.iterations;
    std::unique_ptr<const CostModel> cost;
    if (trace->recording && !options_.spin()) {
      throw UsageError(fmt::format(
          "'{}' was recorded elsewhere, and its kernels are not here: --kernels spin waits for as "
          "long as they took",
          cell.workload));
    }
    if (!options_.spin()) {
      if (trace != trace_ || text.device != device_ || text.cost != cost_) {
        table_ = TableFor(*trace, text);
        trace_ = trace;
        device_ = text.device;
        cost_ = text.cost;
      }
      AddRewritten(*trace, text, cell.policy);
      cost = std::make_unique<TableCostModel>(table_, LoadDevice(text.device));
    }
    Setup setup = Scenario(trace, text, std::move(cost)).setup();
    if (options_.spin()) setup.device.library_call.reset();  // busy waits call no library
    ValidationResult result = ValidateForRow(setup, cell.policy, backends_);
    for (const std::string& violation : result.validation.violations) {
      session_.Remark(fmt::format("{}: {}", CommandOf(cell), violation));
    }
    if (!options_.commands.empty() && result.fits() && result.validation.parity()) {
      for (ValidatedCommand& command : CommandsOf(result.validation)) {
        command.workload = cell.workload;
        command.policy = cell.policy;
        command.memory = text.memory.empty() ? "all" : text.memory;
        commands_.push_back(std::move(command));
      }
    }
    return result;
  }

 private:
  // The costs that the prediction is made with: the table given or found, which must be of this
  // machine, else one recorded now.
  CostTable TableFor(const Trace& trace, const MachineText& text) {
    const Device device = LoadDevice(text.device);
    std::optional<CostTable> table =
        text.cost == "auto" ? FindRecordedTable(trace, device) : ReadCostTable(text.cost);
    if (table) {
      if (!options_.any_table) {
        CheckProvenance(table->provenance, machine_->gpu(), machine_->cudnn(),
                        options_.recording.record.math);
      }
      return *std::move(table);
    }
    session_.Remark(fmt::format("{}: no table for {}; recording (keep one with spillway record)",
                                trace.name, device.name));
    return options_.recording.Table(*recording_, trace.name, {&trace, 1}, std::nullopt, device,
                                    backends_);
  }

  // Records the kernels of the trace that the policy runs instead: slices of its ops have kernels
  // of their own.
  void AddRewritten(const Trace& trace, const MachineText& text, const std::string& policy) {
    PolicyLibrary library;
    if (!library.Traits(policy).divides_ops) return;
    Setup setup =
        Scenario(trace, text, std::make_unique<TableCostModel>(table_, LoadDevice(text.device)))
            .setup();
    setup.device.memory = setup.memory;
    const TrialRun trial([&](Policy& other, Bytes memory, const TrialOptions&) {
      Setup tried = setup;
      tried.memory = memory;
      return Simulate(tried, other).report;
    });
    Preparation prepared;
    try {
      prepared = library.Make(policy)->Prepare(trace, setup.device, *setup.cost, trial, {});
    } catch (const Error&) {  // its row will say so
    }
    if (!prepared.trace) return;
    recording_->Keep(table_, fmt::format("the table of {}", trace.name));
    AddMissing(recording_->Table(trace.name, {&*prepared.trace, 1}, {}), table_);
  }

  ValidateOptions options_;
  Session& session_;
  std::shared_ptr<CudaMachine> machine_;
  std::unique_ptr<CostRecording> recording_;
  BackendFactories backends_;
  std::shared_ptr<const Trace> trace_;  // that `table_` is of, with these
  std::string device_, cost_;
  CostTable table_;
  std::vector<ValidatedCommand> commands_;
};

// What is misspelt is said before the GPU is opened.
void CheckGrid(const Grid& grid, const Experiment& experiment, const ValidateOptions& options) {
  grid.Check();
  if (!experiment.backends.empty()) {
    throw UsageError("backend: a validation runs on sim and cuda; leave it out");
  }
  if (!options.spin() &&
      std::ranges::count(SplitSpecifications(experiment.costs), "roofline") > 0) {
    throw UsageError("--cost roofline: a measured run needs kernels by name; give auto or a table");
  }
  const Cell first = grid.at(0);
  MachineText machine = first.machine;
  machine.memory.clear();
  const Scenario scenario(LoadWorkload(first.workload, {first.preset, first.mode == "training"}),
                          machine);
  for (uint64_t i = 0; i < grid.group(); ++i) scenario.WithMemory(grid.at(i).machine.memory);
}

// What measurements depend on besides the cell, as arguments.
std::string OptionsOf(const ValidateOptions& options) {
  std::string text = fmt::format(" --iterations {}", options.iterations);
  const auto add = [&](const char* name, const auto& value, const auto& initial) {
    if (value != initial) text += fmt::format(" --{} {}", name, value);
  };
  const ValidateOptions initial;
  add("kernels", options.kernels, initial.kernels);
  add("timeline", options.timeline, initial.timeline);
  add("math", options.recording.record.math, initial.recording.record.math);
  add("seed", options.seed, initial.seed);
  add("min-time", FormatDuration(options.recording.record.min_time),
      FormatDuration(initial.recording.record.min_time));
  for (const std::string& batch : options.recording.micro_batches) add("micro-batch", batch, "");
  return text;
}

int Execute(const ValidateOptions& options, Session& session) {
  if (options.PrintHelp()) return kOk;
  const double tolerance = ParseTolerance(options.tolerance);
  options.recording.Check();
  const Experiment experiment = options.Load();
  const Shard shard = Shard::Parse(options.shard);
  const Grid grid(experiment, {"liveness"});
  CheckGrid(grid, experiment, options);
  const StoreKind& kind = ValidationKind();
  Measuring measuring(options, grid.at(0), session);
  std::optional<SweepStore> store;
  std::string output = experiment.output;
  FormatOption format = options.format;
  if (output.ends_with(".sqlite")) {
    store.emplace(std::exchange(output, ""), SweepStore::Open::kCreate, kind);
  }
  format.Follow(output);
  FinishedRows<ResultRow>::Format print;
  if (!store && output.empty())
    print = [&](const auto& rows) { return FormatRows(kind, rows, format); };
  uint64_t found = 0;
  size_t next = 0;
  std::optional<FinishedRows<ResultRow>> finished;
  finished.emplace(session, shard.Size(grid), print);
  ValidationRun run;
  run.options = OptionsOf(options);
  run.machine = measuring.machine();
  run.program = fmt::format("spillway {} ({})", SPILLWAY_VERSION, kCommit);
  run.measure = [&](const Cell& cell, const auto& trace) { return measuring.Measure(cell, trace); };
  run.finished = [&](const Cell& cell, const ResultRow& row, bool was_there) {
    found += was_there ? 1 : 0;
    finished->Finish(next++, row, CommandOf(cell),
                     was_there                ? "was there"
                     : Agrees(row, tolerance) ? "agrees"
                                              : "does not agree");
  };
  RunValidations(grid, shard, store ? &*store : nullptr, run);
  const std::vector<ResultRow> rows = finished->Take();
  finished.reset();
  const auto agree = static_cast<size_t>(
      std::ranges::count_if(rows, [&](const ResultRow& row) { return Agrees(row, tolerance); }));
  const bool failed = std::ranges::any_of(rows, HasFailed);
  const std::string text =
      store
          ? fmt::format("{}: {} cells, {} measured, {} were there: {} agree within {}, {} do not\n",
                        experiment.output, rows.size(), rows.size() - found, found, agree,
                        options.tolerance, rows.size() - agree)
          : FormatRows(kind, rows, format);
  const Export exported{"--export-commands", options.commands, [&](const Manifest&) {
                          return FormatCsv(CommandColumns(), measuring.commands());
                        }};
  return session.Finish(text, output, {exported},
                        failed                 ? kPolicyFailure
                        : agree == rows.size() ? kOk
                                               : kNegative,
                        [](Manifest&) {});
}

}  // namespace

void AddValidate(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "validate",
      "Check predictions on this machine's GPU, of one case or of the cells of a grid; exit code 1 "
      "out of tolerance, 4 if a policy failed, which costs its own cells only, 5 without a GPU");
  auto options = std::make_shared<ValidateOptions>();
  options->Add(*verb);
  verb->remove_option(verb->get_option("--backend"));
  options->format.Add(*verb);
  verb->add_option("--tolerance", options->tolerance, "Largest error of the iteration time")
      ->capture_default_str();
  verb->add_option("--iterations", options->iterations,
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
  AddOutput(
      *verb, options->options.output, options->format,
      ". A .sqlite file is a store: each case is in it as soon as it is measured, and what it "
      "has is not measured again; spillway sweep export reads it");
  AddFile(*verb, "--export-commands", options->commands,
          "Write every kernel and copy of what is measured now, predicted and measured, as CSV");
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
