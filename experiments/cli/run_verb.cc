// spillway run: runs one policy on one workload, and explains and exports the run.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/absence.h"
#include "experiments/output/chrome_trace.h"
#include "experiments/output/decisions.h"
#include "experiments/output/explain.h"
#include "experiments/output/layer_schedule.h"
#include "experiments/output/memory_timeline.h"
#include "experiments/output/peak.h"
#include "experiments/output/snapshot_export.h"
#include "experiments/run/execute.h"
#include "policies/builtin.h"
#include "policies/mmcnn/layer_split.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/base/params.h"
#include "traces/format.h"

namespace spillway::cli {
namespace {

struct RunOptions {
  WorkloadOption workload;
  MachineOption machine;
  FormatOption format;
  std::string policy = "liveness";
  bool explain = false;
  std::string output;
  std::map<std::string, std::string> exports;  // path by option; empty if not given
  std::string kernels_from;
  std::string math = "fp32";
  std::string against;
  std::string weights;
  std::string images;
  uint64_t seed = 1;
  std::optional<uint64_t> drain_seed;
  int iterations = 1;
};

// The number of stalls that a table explains and whose remedies are simulated.
constexpr size_t kShownStalls = 10;
// The number of storages that leave the device that a table explains and whose stay is simulated.
constexpr size_t kShownAbsences = 10;
// The number of holders of memory at the peak that a table shows.
constexpr size_t kShownHolders = 10;

// Returns a trial that simulates a remedy of a run and returns the time of the iteration, or
// nullopt if the policy fails. A run that followed a plan is simulated with the same plan.
RemedyTrial TrialOf(const Scenario& scenario, const Outcome& outcome, const PolicyMaker& make,
                    ProgressBar& progress) {
  Setup setup = scenario.setup();
  setup.allocator = outcome.allocator;
  PolicyMaker again = make;
  if (const std::string& plan = outcome.report.plan; !plan.empty()) {
    again = [plan] { return FollowPlan(plan, "the run's plan"); };
  }
  return [setup, again, &progress](const StallRemedy& remedy) -> std::optional<Duration> {
    progress.Say(fmt::format("simulating remedies: {}", Name(remedy.kind)));
    try {
      return SimulateRemedy(setup, again, remedy);
    } catch (const PolicyError&) {
      return std::nullopt;  // a plugin need not cope with a changed run
    }
  };
}

std::string FormatExplained(const Scenario& scenario, const RunOptions& options,
                            const Outcome& outcome, const RunResult& result,
                            const PolicyMaker& make, ProgressBar& progress) {
  const Report& report = outcome.report;
  const Trace& trace = *outcome.trace;
  const Format format = options.format.format();
  std::vector<StallExplanation> stalls;
  std::vector<Absence> absences;
  if (report.fits()) {
    const RemedyTrial trial = TrialOf(scenario, outcome, make, progress);
    // The allocator `planned` would plan the blocks of each trial again, which may take minutes.
    const bool tries = ParseSpecification("allocator", outcome.allocator).name != "planned";
    stalls = ExplainStalls(trace, report, trial, tries ? kShownStalls : 0);
    absences = ExplainAbsences(trace, report, trial, tries ? kShownAbsences : 0);
    progress.Wipe();
  }
  if (format == Format::kJson) {
    return FormatExplanationJson(trace, report, result, stalls, absences);
  }
  if (format == Format::kCsv) return FormatExplanationCsv(trace, report, stalls);
  std::string text = FormatResults({{{&scenario, {result}}}}, options.format);
  if (report.fits()) {
    text += FormatExplanation(trace, report, stalls, kShownStalls);
    text += FormatAbsences(trace, report, absences, kShownAbsences);
    text += "\n" + FormatPeak(FindPeak(trace, report), kShownHolders);
  }
  if (ParsePolicySpec(options.policy).policy == "mmcnn") {
    const Setup& setup = scenario.setup();
    const LeastMemory least = LeastMmcnnMemory(*setup.trace, setup.device.alignment);
    text += fmt::format("\nmmcnn needs at least {} ({} bytes), for layer '{}'\n",
                        FormatBytes(least.size), least.size.count(), least.layer);
  }
  return text;
}

ChromeTraceOrigin OriginOf(const Scenario& scenario, const std::string& policy,
                           const Manifest& manifest) {
  const Setup& setup = scenario.setup();
  return {setup.device.description + " (simulated)",
          manifest.version,
          setup.trace->name,
          policy,
          setup.device.name,
          IfLimited(setup.memory),
          setup.cost->Provenance(),
          RunSha256(manifest)};
}

// Returns the makers of the policy, or of an in-core run with the kernels of --kernels-from.
std::vector<PolicyMaker> MakersOf(const RunOptions& options, const Scenario& scenario) {
  if (options.kernels_from.empty()) return spillway::MakersOf(scenario.setup(), options.policy);
  return {[records = ReadKernelRecords(options.kernels_from)] {
    return std::make_unique<FixedKernels>(records);
  }};
}

std::string PolicyName(const RunOptions& options) {
  return options.kernels_from.empty() ? options.policy : "kernels-from:" + options.kernels_from;
}

// Returns the policies for the manifest; --kernels-from has none.
std::vector<std::string> PoliciesOf(const RunOptions& options) {
  return options.kernels_from.empty() ? std::vector{options.policy} : std::vector<std::string>();
}

void Describe(const RunOptions& options, const Scenario& scenario, Manifest& manifest) {
  DescribeRun({{options.workload.text, &scenario}}, options.machine, PoliciesOf(options), manifest);
  if (!options.weights.empty()) manifest.AddInput("weights", "file", options.weights);
  if (!options.images.empty()) manifest.AddInput("images", "file", options.images);
  if (options.kernels_from.empty()) return;
  manifest.configuration.emplace_back("kernels-from", options.kernels_from);
  manifest.AddInput("decisions", "file", options.kernels_from);
}

Export DecisionsFile(const Scenario& scenario, const RunOptions& options, const Outcome& outcome) {
  return {"--export-decisions", options.exports.at("--export-decisions"), [&](const Manifest&) {
            return FormatDecisions(*outcome.trace, outcome.report, *scenario.setup().cost);
          }};
}

// Returns the export of the plan. Throws `UsageError` if --export-plan was given and the policy has
// no plan.
Export PlanFile(const RunOptions& options, const Outcome& outcome) {
  if (!options.exports.at("--export-plan").empty() && outcome.report.plan.empty()) {
    throw UsageError(fmt::format("--export-plan: the policy '{}' has no plan; joint and plan have",
                                 PolicyName(options)));
  }
  return {"--export-plan", options.exports.at("--export-plan"),
          [&](const Manifest&) { return outcome.report.plan; }};
}

// Returns a table of the contents that the host kept compressed at the end, or an empty text.
std::string FormatStored(const Trace& trace, const CompressionSummary& summary) {
  std::vector<std::vector<std::string>> cells{{"compressed", "density", "bytes", "held"}};
  for (const StoredContents& contents : summary.stored) {
    cells.push_back({trace.tensor(contents.storage).name, fmt::format("{:.3f}", contents.density),
                     std::to_string(contents.size.count()), std::to_string(contents.held.count())});
  }
  return cells.size() == 1 ? std::string() : "\n" + FormatTable(cells);
}

// Returns the factories of backends. Opens the GPU for --backend cuda.
BackendFactories BackendsOf(const RunOptions& options, const Trace& trace) {
  BackendFactories backends;
  std::shared_ptr<const GivenContents> given;
  if (!options.weights.empty() || !options.images.empty()) {
    if (trace.training) throw UsageError("--weights and --images need --mode inference");
    given = std::make_shared<const GivenContents>(options.weights, options.images, trace);
  }
  if (options.machine.backend == "cpu") {
    backends.Add("cpu", CpuFactory({options.seed, options.drain_seed, given}));
  } else if (options.machine.backend == "cuda") {
    backends.Add("cuda", CudaFactory(Cuda().open({0, options.math, options.seed, !trace.training}),
                                     {.seed = options.seed, .given = given}));
  }
  return backends;
}

// Returns the machine. Without --memory, some policies have a memory that differs from the
// device's.
MachineOption MachineOf(const RunOptions& options) {
  MachineOption machine = options.machine;
  if (machine.backend != kSimulator) machine.iterations = options.iterations;
  if (machine.memory.empty() && options.kernels_from.empty()) {
    machine.memory = PolicyLibrary().MemoryPolicy(options.policy);
  }
  return machine;
}

// Executes the policy of --against in all of the device's memory and stores in `result` whether
// loss and weights have the same bits. Returns a text that says so.
std::string Compare(const RunOptions& options, const BackendFactories& backends,
                    RunResult& result) {
  RunOptions other = options;
  other.policy = options.against;
  other.machine.memory.clear();
  other.machine.allocator = MachineText().allocator;
  const Scenario scenario(options.workload.Load(), MachineOf(other));
  const Outcome executed = scenario.Play(other.policy, backends);
  const RunResult reference = ResultOf(scenario, other.policy, executed);
  result.against = other.policy;
  if (!result.fits() || !reference.fits()) {
    return fmt::format("nothing to compare: {} does not fit\n",
                       result.fits() ? result.against : result.policy);
  }
  result.same_bits =
      result.loss == reference.loss && result.weights_digest == reference.weights_digest;
  std::string classes;
  if (!options.images.empty()) {
    classes =
        fmt::format("top-1 {} with {}\n", fmt::join(executed.execution->top1, " "), result.against);
  }
  if (*result.same_bits) return fmt::format("{}same bits as {}\n", classes, result.against);
  return classes + fmt::format(
                       "other bits than {}: loss {}, weights {}; other kernels round differently "
                       "(--kernels-from runs in core with the kernels of another run)\n",
                       result.against, reference.loss.value_or(0), reference.weights_digest);
}

// Executes the run on real bytes. The output has loss and digest but no times: `validate` measures
// the times of a GPU.
int ExecuteForReal(const RunOptions& options, const Scenario& scenario, Session& session) {
  if (!options.exports.at("--export-densities").empty() && options.machine.compress.empty()) {
    throw UsageError("--export-densities needs --compress all: densities are counted there");
  }
  const BackendFactories backends = BackendsOf(options, *scenario.setup().trace);
  const Outcome outcome = scenario.Play(PolicyName(options), MakersOf(options, scenario), backends);
  RunResult result = ResultOf(scenario, PolicyName(options), outcome);
  std::string comparison;
  if (!options.against.empty()) comparison = Compare(options, backends, result);
  const bool good = result.fits() && (options.against.empty() || result.same_bits == true);
  std::string text = FormatResults({{{&scenario, {result}}}}, options.format);
  if (options.format.format() == Format::kTable && outcome.execution && outcome.execution->loss) {
    text += fmt::format("loss {} after {} iteration(s), weights {}\n", *outcome.execution->loss,
                        options.iterations, outcome.execution->weights_digest);
  }
  if (options.format.format() == Format::kTable && !options.images.empty() && outcome.execution) {
    text += fmt::format("top-1 {}\n", fmt::join(outcome.execution->top1, " "));
  }
  if (options.format.format() == Format::kTable) text += comparison;
  if (options.format.format() == Format::kTable && outcome.compression) {
    text += FormatStored(*outcome.trace, *outcome.compression);
  }
  std::vector<Export> files;
  if (result.fits()) {
    files = {DecisionsFile(scenario, options, outcome),
             PlanFile(options, outcome),
             {"--export-densities", options.exports.at("--export-densities"), [&](const Manifest&) {
                return FormatDensities(*outcome.trace, outcome.compression->stored);
              }}};
  }
  if (options.machine.check) session.Remark(CheckedRemark("the report"));
  return session.Finish(text, options.output, files, good ? kOk : kNegative,
                        [&](Manifest& manifest) { Describe(options, scenario, manifest); });
}

int Execute(const RunOptions& options, Session& session) {
  const Scenario scenario(options.workload.Load(), MachineOf(options));
  if (options.machine.backend != kSimulator) return ExecuteForReal(options, scenario, session);
  const std::string policy = PolicyName(options);
  const std::vector<PolicyMaker> makers = MakersOf(options, scenario);
  const Outcome outcome = scenario.Play(policy, makers);
  const RunResult result = ResultOf(scenario, policy, outcome);
  const Trace& trace = *outcome.trace;
  const Report& report = outcome.report;
  const std::string text = options.explain
                               ? FormatExplained(scenario, options, outcome, result,
                                                 makers[outcome.policy], session.progress())
                               : FormatResults({{{&scenario, {result}}}}, options.format);
  const std::vector<Export> exports{
      {"--export-trace", options.exports.at("--export-trace"),
       [&](const Manifest& manifest) {
         return FormatChromeTrace(trace, report, *scenario.setup().cost,
                                  OriginOf(scenario, policy, manifest));
       }},
      {"--export-memory", options.exports.at("--export-memory"),
       [&](const Manifest&) { return FormatMemoryCsv(trace, report); }},
      {"--export-schedule", options.exports.at("--export-schedule"),
       [&](const Manifest&) { return FormatScheduleCsv(trace, report); }},
      {"--export-rewritten", options.exports.at("--export-rewritten"),
       [&](const Manifest&) { return FormatTrace(trace); }},
      DecisionsFile(scenario, options, outcome),
      PlanFile(options, outcome),
      {"--export-snapshot", options.exports.at("--export-snapshot"),
       [&](const Manifest&) { return FormatSnapshot(trace, report); }}};
  if (options.machine.check) session.Remark(CheckedRemark("the report"));
  const int exit_code =
      session.Finish(text, options.output, result.fits() ? exports : std::vector<Export>(),
                     result.fits() ? kOk : kNegative,
                     [&](Manifest& manifest) { Describe(options, scenario, manifest); });
  if (!result.fits() && std::any_of(exports.begin(), exports.end(),
                                    [](const Export& file) { return !file.path.empty(); })) {
    session.Remark("the workload does not fit: nothing was exported");
  }
  return exit_code;
}

}  // namespace

void AddRun(Command& program, Session& session) {
  Command& verb = program.Add("run", "Simulate one policy; exit code 1 if it does not fit");
  auto& options = verb.Runs(Execute, session);
  options.workload.Add(verb);
  options.machine.Add(verb);
  options.format.Add(verb);
  const Option& policy =
      verb.Text("--policy", options.policy, "NAME or PLUGIN.so:NAME, then :key=value,...; or help");
  const Option& backend =
      verb.Choice("--backend", options.machine.backend, {"sim", "cpu", "cuda"},
                  "sim predicts; cpu and cuda execute on real bytes, with synthetic data");
  const std::vector<std::string> real{"cpu", "cuda"};
  verb.Number("--seed", options.seed, {}, "seed of parameters, data and dropout")
      .OnlyFor(backend, real);
  verb.Number("--drain-seed", options.drain_seed, {},
              "execute in a legal order drawn from this seed instead of as issued")
      .OnlyFor(backend, {"cpu"});
  verb.Number("--iterations", options.iterations, {1, 1000000}, "training steps")
      .OnlyFor(backend, real);
  verb.Choice("--math", options.math, {"fp32", "tf32"}, "arithmetic of convolutions and products")
      .OnlyFor(backend, {"cuda"});
  verb.Text("--against", options.against,
            "execute this policy too, in all of the device's memory, and compare loss and "
            "weights; exit code 1 if they differ")
      .OnlyFor(backend, real);
  verb.File("--weights", options.weights,
            "parameters of an inference, from a safetensors file with the names and shapes that "
            "spillway trace build writes")
      .OnlyFor(backend, real);
  verb.File("--images", options.images,
            "images of an inference, from a safetensors file with one tensor; prints the class "
            "that the network finds most probable for each")
      .OnlyFor(backend, real);
  AddOutput(verb, options.output, options.format);
  const std::vector<std::string> predicted{"sim"};
  verb.Flag("--explain", options.explain,
            "for each stall, say which commands waited, and which changes shorten the simulated "
            "iteration; for each storage that leaves the device, say when, and how long the "
            "iteration is if it stays; and say who holds the memory at its peak")
      .OnlyFor(backend, predicted);
  const auto add = [&](const char* name, const auto& backends, const char* help) {
    verb.File(name, options.exports[name], help).OnlyFor(backend, backends);
  };
  add("--export-trace", predicted,
      "write the iteration as Chrome/Perfetto JSON, for ui.perfetto.dev");
  add("--export-memory", predicted,
      "write the memory over the iteration as CSV, one line per change");
  add("--export-schedule", predicted,
      "write the iteration as CSV, layer by layer: parts, prefetches, memory, transfers, stalls");
  add("--export-rewritten", predicted,
      "write the trace that ran, as the policy rewrote it, for record");
  add("--export-snapshot", predicted,
      "write the memory over the iteration as a PyTorch memory snapshot (a pickle), for "
      "pytorch.org/memory_viz");
  add("--export-densities", real,
      "with --compress: write the share of words that are not zero of each feature map as CSV, "
      "which --compress takes as density=FILE");
  verb.File("--export-decisions", options.exports["--export-decisions"],
            "Write every decision and placement as JSON");
  verb.File("--export-plan", options.exports["--export-plan"],
            "Write the plan of joint as JSON, for --policy plan:file=FILE");
  verb.File("--kernels-from", options.kernels_from,
            "Stay in-core, with the kernels of a run that --export-decisions wrote: the reference "
            "for its bits")
      .Excludes(policy);
}

}  // namespace spillway::cli
