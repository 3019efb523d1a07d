// spillway run: one policy on one workload, explained and exported where asked for.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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
  std::string export_trace;
  std::string export_memory;
  std::string export_schedule;
  std::string export_rewritten;
  std::string export_decisions;
  std::string export_snapshot;
  std::string export_plan;
  std::string export_densities;
  std::string kernels_from;
  std::string math = "fp32";
  std::string against;
  std::string weights;
  std::string images;
  uint64_t seed = 1;
  std::optional<uint64_t> drain_seed;
  int iterations = 1;
  // Options that were given and have a meaning on some backends only, with these.
  std::vector<std::pair<std::string, std::vector<std::string>>> of_backends;
};

// How many stalls a table explains, and of how many remedies are simulated.
constexpr size_t kShownStalls = 10;
// Likewise of storages that leave the device.
constexpr size_t kShownAbsences = 10;
// How many holders of memory at its peak a table shows.
constexpr size_t kShownHolders = 10;

// Simulates remedies of a run on the simulator. What has been planned stays as it was planned.
RemedyTrial TrialOf(const Scenario& scenario, const Outcome& outcome, const PolicyMaker& make,
                    ProgressBar& progress) {
  Setup setup = scenario.setup();
  setup.allocator = outcome.allocator;
  setup.policy_plan = outcome.report.plan;
  return [setup, make, &progress](const StallRemedy& remedy) -> std::optional<Duration> {
    progress.Say(fmt::format("simulating remedies: {}", Name(remedy.kind)));
    try {
      return SimulateRemedy(setup, make, remedy);
    } catch (const PolicyError&) {
      return std::nullopt;  // a policy of another's making need not cope with what it did not do
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
    // With the allocator `planned` each trial would have its blocks planned anew, which may take
    // minutes.
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
  PolicyLibrary library;
  if (const auto& least_memory = library.Traits(options.policy).least_memory) {
    const Setup& setup = scenario.setup();
    const LeastMemory least = least_memory(*setup.trace, setup.device.alignment);
    text += fmt::format("\n{} needs at least {} ({} bytes), for layer '{}'\n", options.policy,
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

// The policy asked for, or the in-core run with another run's kernels.
std::vector<PolicyMaker> MakersOf(const RunOptions& options, const Scenario& scenario) {
  if (options.kernels_from.empty()) return spillway::MakersOf(scenario.setup(), options.policy);
  return {[records = ReadKernelRecords(options.kernels_from)] {
    return std::make_unique<FixedKernels>(records);
  }};
}

std::string PolicyName(const RunOptions& options) {
  return options.kernels_from.empty() ? options.policy : "kernels-from:" + options.kernels_from;
}

// Those that a manifest describes.
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
  return {"--export-decisions", options.export_decisions, [&](const Manifest&) {
            return FormatDecisions(*outcome.trace, outcome.report, *scenario.setup().cost);
          }};
}

// Throws `UsageError` if the plan is asked for and the policy has none.
Export PlanFile(const RunOptions& options, const Outcome& outcome) {
  if (!options.export_plan.empty() && outcome.report.plan.empty()) {
    throw UsageError(fmt::format("--export-plan: the policy '{}' has no plan; joint and plan have",
                                 PolicyName(options)));
  }
  return {"--export-plan", options.export_plan,
          [&](const Manifest&) { return outcome.report.plan; }};
}

// What the host kept compressed in the end.
std::string FormatStored(const Trace& trace, const CompressionSummary& summary) {
  std::vector<std::vector<std::string>> cells{{"compressed", "density", "bytes", "held"}};
  for (const StoredContents& contents : summary.stored) {
    cells.push_back({trace.tensor(contents.storage).name, fmt::format("{:.3f}", contents.density),
                     std::to_string(contents.size.count()), std::to_string(contents.held.count())});
  }
  return cells.size() == 1 ? std::string() : "\n" + FormatTable(cells);
}

// The backends, with the one that executes opened if it is asked for.
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

// With the memory that the policy gets unless another is asked for.
MachineOption MachineOf(const RunOptions& options) {
  MachineOption machine = options.machine;
  if (machine.backend != kSimulator) machine.iterations = options.iterations;
  if (machine.memory.empty() && options.kernels_from.empty()) {
    machine.memory = PolicyLibrary().MemoryPolicy(options.policy);
  }
  return machine;
}

// Executes the policy of --against too, in all of the device's memory, and compares. What there is
// to say of it.
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
                       "(--kernels-from "
                       "runs in core with those of another run)\n",
                       result.against, reference.loss.value_or(0), reference.weights_digest);
}

// On real bytes: what fits, loss and digest; the times of a GPU are exported from `validate`.
int ExecuteForReal(const RunOptions& options, const Scenario& scenario, Session& session) {
  if (options.explain || !options.export_trace.empty() || !options.export_memory.empty() ||
      !options.export_schedule.empty() || !options.export_rewritten.empty() ||
      !options.export_snapshot.empty()) {
    throw UsageError("--explain and the exports show predicted times: use them with --backend sim");
  }
  if (!options.export_densities.empty() && options.machine.compress.empty()) {
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
             {"--export-densities", options.export_densities, [&](const Manifest&) {
                return FormatDensities(*outcome.trace, outcome.compression->stored);
              }}};
  }
  if (options.machine.check) session.Remark(CheckedRemark("the report"));
  return session.Finish(text, options.output, files, good ? kOk : kNegative,
                        [&](Manifest& manifest) { Describe(options, scenario, manifest); });
}

void CheckBackend(const RunOptions& options) {
  for (const auto& [option, backends] : options.of_backends) {
    if (std::find(backends.begin(), backends.end(), options.machine.backend) != backends.end())
      continue;
    throw UsageError(fmt::format("{} has no meaning with --backend {}, only with --backend {}",
                                 option, options.machine.backend, fmt::join(backends, " or ")));
  }
}

int Execute(const RunOptions& options, Session& session) {
  if (PrintHelpValues(options.machine, {options.policy})) return kOk;
  CheckBackend(options);
  const Scenario scenario(options.workload.Load(), MachineOf(options));
  if (options.machine.backend != kSimulator) return ExecuteForReal(options, scenario, session);
  if (!options.export_densities.empty()) {
    throw UsageError("--export-densities needs real bytes: use it with --backend cpu or cuda");
  }
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
      {"--export-trace", options.export_trace,
       [&](const Manifest& manifest) {
         return FormatChromeTrace(trace, report, *scenario.setup().cost,
                                  OriginOf(scenario, policy, manifest));
       }},
      {"--export-memory", options.export_memory,
       [&](const Manifest&) { return FormatMemoryCsv(trace, report); }},
      {"--export-schedule", options.export_schedule,
       [&](const Manifest&) { return FormatScheduleCsv(trace, report); }},
      {"--export-rewritten", options.export_rewritten,
       [&](const Manifest&) { return FormatTrace(trace); }},
      DecisionsFile(scenario, options, outcome),
      PlanFile(options, outcome),
      {"--export-snapshot", options.export_snapshot,
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

void AddRun(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand("run", "Simulate one policy; exit code 1 if it does not fit");
  auto options = std::make_shared<RunOptions>();
  options->workload.Add(*verb);
  options->machine.Add(*verb);
  options->format.Add(*verb);
  CLI::Option* const policy = verb->add_option(
      "--policy", options->policy, "NAME or PLUGIN.so:NAME, then :key=value,...; or help");
  policy->capture_default_str();
  verb->add_option("--backend", options->machine.backend,
                   "sim predicts; cpu and cuda execute on real bytes, with synthetic data")
      ->check(CLI::IsMember({"sim", "cpu", "cuda"}))
      ->capture_default_str();
  const auto only_on = [raw = options.get()](CLI::Option* option,
                                             std::vector<std::string> backends) {
    option->each([raw, name = option->get_name(), backends](const std::string&) {
      raw->of_backends.emplace_back(name, backends);
    });
  };
  only_on(
      verb->add_option("--seed", options->seed, "cpu, cuda: seed of parameters, data and dropout")
          ->check(NotNegative())
          ->capture_default_str(),
      {"cpu", "cuda"});
  only_on(verb->add_option("--drain-seed", options->drain_seed,
                           "cpu: execute in a legal order drawn from this seed instead of as "
                           "issued")
              ->check(NotNegative()),
          {"cpu"});
  only_on(verb->add_option("--iterations", options->iterations, "cpu, cuda: training steps")
              ->check(CLI::Range(1, 1000000))
              ->capture_default_str(),
          {"cpu", "cuda"});
  only_on(verb->add_option("--math", options->math, "cuda: arithmetic of convolutions and products")
              ->check(CLI::IsMember({"fp32", "tf32"}))
              ->capture_default_str(),
          {"cuda"});
  only_on(verb->add_option("--against", options->against,
                           "cpu, cuda: execute this policy too, in all of the device's memory, and "
                           "compare loss and weights; exit code 1 if they differ"),
          {"cpu", "cuda"});
  only_on(
      AddFile(
          *verb, "--weights", options->weights,
          "cpu, cuda: the parameters of an inference from a safetensors file, with the names and "
          "shapes of spillway trace build"),
      {"cpu", "cuda"});
  only_on(AddFile(*verb, "--images", options->images,
                  "cpu, cuda: the images of an inference from a safetensors file with one tensor; "
                  "prints the class of each that the network finds most probable"),
          {"cpu", "cuda"});
  verb->add_flag(
      "--explain", options->explain,
      "Say for each stall what waited for what, and what simulation says would shorten the "
      "iteration; for each storage that leaves the device when, and the iteration if it stayed; "
      "and who holds the memory at its peak");
  AddOutput(*verb, options->output, options->format);
  AddFile(*verb, "--export-trace", options->export_trace,
          "Write the iteration as Chrome/Perfetto JSON, for ui.perfetto.dev");
  AddFile(*verb, "--export-memory", options->export_memory,
          "Write the memory over the iteration as CSV, one line per change");
  AddFile(
      *verb, "--export-schedule", options->export_schedule,
      "Write the iteration layer by layer as CSV: parts, prefetches, memory, transfers, stalls");
  AddFile(*verb, "--export-rewritten", options->export_rewritten,
          "Write the trace that ran, as the policy rewrote it, for record");
  AddFile(*verb, "--export-decisions", options->export_decisions,
          "Write every decision and placement as JSON");
  AddFile(*verb, "--export-plan", options->export_plan,
          "Write what joint has planned as JSON, for --policy plan:file=FILE");
  AddFile(*verb, "--export-snapshot", options->export_snapshot,
          "Write the memory over the iteration as a PyTorch memory snapshot (a pickle), "
          "for pytorch.org/memory_viz");
  AddFile(*verb, "--export-densities", options->export_densities,
          "cpu, cuda, with --compress: write the share of words that are not zero of each "
          "feature map as CSV, which --compress takes as density=FILE");
  AddFile(*verb, "--kernels-from", options->kernels_from,
          "Stay in-core, with the kernels of a run that was written by "
          "--export-decisions: the reference for its bits")
      ->excludes(policy);
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
