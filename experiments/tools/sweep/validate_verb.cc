// The verb `spillway validate` checks predictions against the GPU of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/commit.h"
#include "experiments/cli/frame/exports.h"
#include "experiments/cli/frame/finished_rows.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/execute.h"
#include "experiments/run/inputs.h"
#include "experiments/run/isolation.h"
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
  int iterations = 25;
  std::string tolerance = "5%";
  RecordingOption recording;  // for traces without a cost table
  std::string kernels = "real";
  std::string timeline = "events";
  bool any_table = false;
  uint64_t seed = 1;
  ExportsOption exports;
  std::optional<uint64_t> cell;  // the only cell that a worker measures, by its number

  bool spin() const { return kernels == "spin"; }
};

// Returns the fraction for a percentage: 0.05 for "5%". Throws `UsageError` if the text is invalid.
double ParseTolerance(const std::string& text) {
  try {
    size_t used = 0;
    const double percent = std::stod(text, &used);
    if (text.substr(used) == "%" && percent >= 0 && std::isfinite(percent)) return percent / 100;
  } catch (const std::logic_error&) {
  }
  throw UsageError(fmt::format("--tolerance: '{}' is no percentage such as 5%", text));
}

// A `Measuring` object validates one cell after the other on the GPU of this machine.
class Measuring {
 public:
  // `first` is the first cell to be measured. Its mode determines how the machine is opened.
  Measuring(const ValidateOptions& options, const Case& first, Session& session)
      : options_(options),
        session_(session),
        machine_(Cuda().open({options.recording.devices.front(), options.recording.record.math,
                              options.seed,
                              /*short_copies=*/ModeOf(first) == "inference"})),
        recording_(options_.recording.Open(*machine_, session.progress())) {
    CudaRun run{options.seed, options.spin() ? CudaWork::kSpin : CudaWork::kKernels};
    if (options.timeline == "cupti") run.timeline = CudaTimeline::kActivity;
    run.digest = false;
    backends_.Add("cuda", CudaFactory(machine_, run));
  }

  // Returns the parts of the machine on which results depend: the GPU and the cuDNN version.
  std::string machine() const {
    return fmt::format("{}, cuDNN {}", machine_->gpu(), machine_->cudnn());
  }

  const std::vector<ValidatedCommand>& commands() const { return commands_; }

  // Measures the cell with the number `i`, in a process of its own if it is isolated. Such a
  // process opens the GPU again, and records kernels that neither a table nor the store has.
  ValidationResult Measure(uint64_t i, const Case& cell,
                           const std::shared_ptr<const Trace>& trace) {
    ValidationResult result = IsIsolated(cell) ? Isolated(i, cell, trace) : Here(cell, trace);
    for (const std::string& violation : result.validation.violations) {
      session_.Remark(fmt::format("{}: {}", CommandOf(cell), violation));
    }
    if (options_.exports.asks_for("commands") && result.fits() && result.validation.parity()) {
      for (ValidatedCommand& command : CommandsOf(result.validation)) {
        command.workload = cell.workload;
        command.policy = cell.policy.name();
        command.memory = cell.memory ? cell.memory->text() : "all";
        commands_.push_back(std::move(command));
      }
    }
    return result;
  }

  // Measures the cell in this process.
  ValidationResult Here(const Case& cell, const std::shared_ptr<const Trace>& trace) {
    Case asked = cell;
    asked.backend = "cuda";
    asked.iterations = options_.iterations;
    std::unique_ptr<const CostModel> cost;
    if (trace->recording && !options_.spin()) {
      throw UsageError(fmt::format(
          "'{}' was recorded elsewhere, and its kernels are not here: --kernels spin waits for as "
          "long as they took",
          cell.workload));
    }
    if (!options_.spin()) {
      if (trace != trace_ || asked.device != device_ || asked.cost != cost_) {
        table_ = TableFor(*trace, asked);
        trace_ = trace;
        device_ = asked.device;
        cost_ = asked.cost;
      }
      AddRewritten(trace, asked);
      cost = std::make_unique<TableCostModel>(table_, LoadDevice(asked.device));
    }
    const Inputs inputs(asked, trace, std::move(cost));
    // Busy-wait kernels make no library calls.
    const auto change = [spin = options_.spin()](Device& device) {
      if (spin) device.library_call.reset();
    };
    return ValidateForRow(asked, inputs, backends_, change);
  }

 private:
  ValidationResult Isolated(uint64_t i, const Case& cell,
                            const std::shared_ptr<const Trace>& trace) {
    std::vector<std::string> arguments = session_.arguments();
    arguments.insert(arguments.end(), {"--cell", std::to_string(i)});
    try {
      return LoadValidation(RunIsolated(cell, arguments).text, trace);
    } catch (const PolicyError& error) {
      ValidationResult result = MakeValidationResult(cell, Inputs(cell, trace), {});
      result.failure = error.what();
      return result;
    }
  }

  // Returns the cost table for the prediction: the given table or the one found for the trace. If
  // there is none, records it now. Unless --any-table is given, throws `InputError` if the table is
  // of another machine.
  CostTable TableFor(const Trace& trace, const Case& asked) {
    const Device device = LoadDevice(asked.device);
    std::optional<CostTable> table = asked.cost.automatic() ? FindRecordedTable(trace, device)
                                                            : ReadCostTable(asked.cost.text());
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

  // Records the kernels of the rewritten trace if the policy divides ops, because slices of ops
  // need other kernels than the ops.
  void AddRewritten(const std::shared_ptr<const Trace>& trace, const Case& asked) {
    if (!PolicyLibrary().Traits(asked.policy.name()).divides_ops) return;
    const Inputs inputs(asked, trace,
                        std::make_unique<TableCostModel>(table_, LoadDevice(asked.device)));
    std::optional<Trace> rewritten;
    try {
      rewritten = RewrittenTrace(inputs.DraftOf(asked));
    } catch (const Error&) {  // the row of the cell will report the error
    }
    if (!rewritten) return;
    recording_->Keep(table_, fmt::format("the table of {}", trace->name));
    AddMissing(recording_->Table(trace->name, {&*rewritten, 1}, {}), table_);
  }

  ValidateOptions options_;
  Session& session_;
  std::shared_ptr<CudaMachine> machine_;
  std::unique_ptr<CostRecording> recording_;
  BackendFactories backends_;
  std::shared_ptr<const Trace> trace_;  // `table_` is for this trace, device and cost
  std::string device_;
  CostSource cost_ = "auto";
  CostTable table_;
  std::vector<ValidatedCommand> commands_;
};

// Checks the grid and the options before the GPU is opened.
void CheckGrid(const Grid& grid, const Experiment& experiment, const ValidateOptions& options) {
  grid.Check();
  if (experiment.values.contains("backend")) {
    throw UsageError("backend: a validation runs on sim and cuda; leave it out");
  }
  const Inputs inputs(grid.at(0));
  for (uint64_t i = 0; i < grid.group(); ++i) inputs.MemoryOf(grid.at(i));
  const auto costs = experiment.values.find("cost");
  if (options.spin() || costs == experiment.values.end()) return;
  if (std::ranges::count(SplitSpecifications(costs->second), "roofline") > 0) {
    throw UsageError("--cost roofline: a measured run needs kernels by name; give auto or a table");
  }
}

// Returns the options on which measurements depend, in addition to the cell, as arguments.
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
  const double tolerance = ParseTolerance(options.tolerance);
  options.recording.Check();
  const StoreKind& kind = ValidationKind();
  CheckView(options.format.view(), kind.columns);
  const Experiment experiment = options.Load();
  const Shard shard = Shard::Parse(options.shard);
  const Grid grid(experiment, {"liveness"});
  CheckGrid(grid, experiment, options);
  RemarkTraining(experiment, session);
  Measuring measuring(options, grid.at(0), session);
  if (options.cell) {
    const Case cell = grid.at(*options.cell);
    const auto trace = std::make_shared<const Trace>(LoadTrace(cell));
    return session.Finish(SaveValidation(measuring.Here(cell, trace), trace), kOk);
  }
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
  run.measure = [&](uint64_t i, const Case& cell, const auto& trace) {
    return measuring.Measure(i, cell, trace);
  };
  run.finished = [&](const Case& cell, const ResultRow& row, bool was_there) {
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
  std::set<std::string> failures;
  for (const ResultRow& row : rows) {
    if (auto failure = FailureOf(row)) failures.insert(*std::move(failure));
  }
  for (const std::string& failure : failures) session.Remark(failure);
  const std::string text =
      store
          ? fmt::format("{}: {} cells, {} measured, {} were there: {} agree within {}, {} do not\n",
                        experiment.output, rows.size(), rows.size() - found, found, agree,
                        options.tolerance, rows.size() - agree)
          : FormatRows(kind, rows, format);
  const Export exported = options.exports.File("commands", [&](const Manifest&) {
    return FormatCsv(CommandColumns(), measuring.commands());
  });
  return session.Finish(text, output, {exported},
                        !failures.empty()      ? kPolicyFailure
                        : agree == rows.size() ? kOk
                                               : kNegative,
                        [](Manifest&) {});
}

}  // namespace

void AddValidate(Command& program, Session& session) {
  Command& verb = program.Add(
      "validate",
      "Check predictions for one case or the cells of a grid on this machine's GPU; exit code 1 if "
      "out of tolerance, 4 if a policy failed, which affects only its own cells, 5 without a GPU");
  verb.examples = {"validate alexnet:8 --policy vdnn-all --memory 30%",
                   "validate 'alexnet:{8,16}' --kernels spin -o v.sqlite"};
  auto& options = verb.Runs(Execute, session);
  options.Add(verb);
  verb.Remove("--backend");
  options.format.Add(verb);
  verb.Text("--tolerance", options.tolerance, "Largest error of the iteration time");
  verb.Number("--iterations", options.iterations, {kWarmUp + 2, 1000000},
              "Iterations per case: three to warm up, the last to stamp each command, the "
              "others timed");
  options.recording.Add(verb);
  verb.Choice("--kernels", options.kernels, {"real", "spin"},
              "real, or spin: busy waits of the predicted times, for any trace");
  verb.Choice("--timeline", options.timeline, {"events", "cupti"},
              "Source of the measured times of kernels and copies: events around them, or cupti, "
              "which leaves out the time in which the GPU begins and ends them");
  verb.Flag("--any-table", options.any_table,
            "Accept a cost table of another GPU, cuDNN or arithmetic");
  verb.Number("--seed", options.seed, {}, "Seed of parameters, data and dropout");
  options.format.other_ending = ".sqlite";
  if (session.captures()) verb.Number("--cell", options.cell, {}, "The cell to measure");
  AddOutput(verb, options.options.output, options.format,
            ". A .sqlite file is a store: each case is in it as soon as it is measured, and a case "
            "that is there is not measured again; spillway sweep export reads it");
  options.exports.Add(
      verb,
      {{"commands", "every kernel and copy that is measured now, both times of each, as CSV"}});
}

}  // namespace spillway::cli
