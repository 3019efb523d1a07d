// spillway run: runs one policy on one workload, and explains and exports the run.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/case_results.h"
#include "experiments/cli/frame/exports.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/absence.h"
#include "experiments/output/chakra_export.h"
#include "experiments/output/chrome_trace.h"
#include "experiments/output/decisions.h"
#include "experiments/output/explain.h"
#include "experiments/output/layer_schedule.h"
#include "experiments/output/memory_timeline.h"
#include "experiments/output/peak.h"
#include "experiments/output/run_result.h"
#include "experiments/output/snapshot_export.h"
#include "experiments/run/execute.h"
#include "experiments/run/inputs.h"
#include "experiments/run/isolation.h"
#include "experiments/run/prepare.h"
#include "experiments/run/remedy.h"
#include "experiments/tools/measure/recording_option.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/base/params.h"
#include "traces/format.h"

namespace spillway::cli {
namespace {

struct RunOptions {
  Case asked;
  FormatOption format;
  bool explain = false;
  std::string output;
  ExportsOption exports;
  std::string kernels_from;
  std::string math = "fp32";
  std::string against;
  GivenFiles given;
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

// The memory of the largest GPUs that are sold, NVIDIA's B300 and AMD's MI355X.
constexpr Bytes kLargestMemory(288'000'000'000);

// Returns a trial that simulates a remedy of a run and returns the time of the iteration, or
// nullopt if the policy fails or no GPU has the memory. A run that followed a plan is simulated
// with the same plan.
RemedyTrial TrialOf(const LoadedCase& loaded, const Outcome& outcome, ProgressBar& progress) {
  Case asked = loaded.asked;
  asked.allocator = outcome.allocator;
  Draft run = loaded.inputs->DraftOf(loaded.asked);
  run.policy = outcome.policy;
  run.policy_plan = outcome.report.plan;
  return [asked, run, &progress](const StallRemedy& remedy) -> std::optional<Duration> {
    if (remedy.kind == RemedyKind::kMoreMemory && run.memory + remedy.memory > kLargestMemory) {
      return std::nullopt;
    }
    progress.Say(fmt::format("simulating remedies: {}", Name(remedy.kind)));
    try {
      return SimulateRemedy(asked, run, remedy);
    } catch (const PolicyError&) {
      return std::nullopt;  // a plugin need not cope with a changed run
    }
  };
}

std::string FormatExplained(const LoadedCase& loaded, const RunOptions& options,
                            const Outcome& outcome, const RunResult& result,
                            ProgressBar& progress) {
  const Report& report = outcome.report;
  const Trace& trace = *outcome.trace;
  const View view = options.format.view();
  std::vector<StallExplanation> stalls;
  std::vector<Absence> absences;
  if (report.fits()) {
    const RemedyTrial trial = TrialOf(loaded, outcome, progress);
    // The allocator `planned` would plan the blocks of each trial again, which may take minutes.
    const bool tries = AllocatorChoice(outcome.allocator).planned() == nullptr;
    stalls = ExplainStalls(trace, report, trial, tries ? kShownStalls : 0);
    absences = ExplainAbsences(trace, report, trial, tries ? kShownAbsences : 0);
    progress.Wipe();
  }
  if (view.format == Format::kJson) {
    return FormatExplanationJson(trace, report, result, stalls, absences);
  }
  if (!view.is_own_table()) return FormatStalls(view, trace, report, stalls);
  std::string text = FormatResults({{{loaded, {result}}}}, options.format);
  if (report.fits()) {
    const std::string peak = FormatPeak(FindPeak(trace, report), kShownHolders);
    if (!HasLongStalls(report)) text += peak + "\n";
    text += FormatExplanation(trace, report, stalls, HasLongStalls(report) ? kShownStalls : 0);
    text += FormatAbsences(trace, report, absences, kShownAbsences);
    if (HasLongStalls(report)) text += "\n" + peak;
  }
  text += FormatRefused(report);
  const PolicyChoice& policy = loaded.asked.policy;
  PolicyLibrary library;
  if (policy.spec().policy.empty()) return text;
  if (const auto& least_memory = library.Traits(policy.name()).least_memory) {
    const Inputs& inputs = *loaded.inputs;
    const LeastMemory least = least_memory(*inputs.trace(), inputs.device().alignment);
    text += fmt::format("\n{} needs at least {} ({} bytes), for layer '{}'\n", policy.name(),
                        FormatBytes(least.size), least.size.count(), least.layer);
  }
  return text;
}

ChromeTraceOrigin OriginOf(const LoadedCase& loaded, const Manifest& manifest) {
  const Inputs& inputs = *loaded.inputs;
  return {inputs.device().description + " (simulated)",
          manifest.version,
          inputs.trace()->name,
          loaded.asked.policy.name(),
          inputs.device().name,
          IfLimited(inputs.MemoryOf(loaded.asked)),
          inputs.cost()->Provenance(),
          RunSha256(manifest)};
}

void Describe(const RunOptions& options, const LoadedCase& loaded, Manifest& manifest) {
  DescribeCases({loaded}, manifest);
  const auto& [weights, images, text] = options.given;
  if (!weights.empty()) manifest.AddInput("weights", "file", weights);
  if (!images.empty()) manifest.AddInput("images", "file", images);
  if (!text.empty()) manifest.AddInput("text", "file", text);
  if (options.kernels_from.empty()) return;
  manifest.configuration.emplace_back("kernels-from", options.kernels_from);
  manifest.AddInput("decisions", "file", options.kernels_from);
}

Export DecisionsFile(const LoadedCase& loaded, const RunOptions& options, const Outcome& outcome) {
  return options.exports.File("decisions", [&](const Manifest&) {
    return FormatDecisions(*outcome.trace, outcome.report, *loaded.inputs->cost());
  });
}

// Returns the export of the plan. Throws `UsageError` if it was asked for and the policy has no
// plan.
Export PlanFile(const RunOptions& options, const Outcome& outcome) {
  if (options.exports.asks_for("plan") && outcome.report.plan.empty()) {
    throw UsageError(fmt::format("--export plan: the policy '{}' has no plan; joint and plan have",
                                 outcome.policy.name()));
  }
  return options.exports.File("plan", [&](const Manifest&) { return outcome.report.plan; });
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
  if (options.given.any()) given = std::make_shared<const GivenContents>(options.given, trace);
  const bool keep_weights = options.exports.asks_for("weights");
  if (options.asked.backend == "cpu") {
    backends.Add("cpu", CpuFactory({options.seed, options.drain_seed, given, keep_weights}));
  } else if (options.asked.backend == "cuda") {
    const std::string math = MathFor(trace, options.math);
    backends.Add("cuda",
                 CudaFactory(Cuda().open({0, math, options.seed, !trace.training}),
                             {.seed = options.seed, .given = given, .keep_weights = keep_weights}));
  }
  return backends;
}

// Returns the case. Without --memory, some policies have a memory that differs from the device's.
Case CaseOf(const RunOptions& options) {
  Case asked = options.asked;
  if (asked.backend != kSimulator) asked.iterations = options.iterations;
  if (!options.kernels_from.empty()) {
    asked.policy = {"kernels-from:" + options.kernels_from,
                    [records = ReadKernelRecords(options.kernels_from)] {
                      return std::make_unique<FixedKernels>(records);
                    }};
  } else if (!asked.memory) {
    const std::string memory = PolicyLibrary().MemoryPolicy(asked.policy.name());
    if (!memory.empty()) asked.memory = memory;
  }
  return asked;
}

// Executes the policy of --against in all of the device's memory and stores in `result` whether
// loss and weights have the same bits. Returns a text that says so.
std::string Compare(const RunOptions& options, const BackendFactories& backends,
                    RunResult& result) {
  RunOptions other = options;
  other.asked.policy = options.against;
  other.asked.memory = std::nullopt;
  other.asked.allocator = Case().allocator;
  const Case asked = CaseOf(other);
  const Inputs inputs(asked);
  const Outcome executed = RunCase(asked, inputs, backends);
  const RunResult reference = ResultOf(asked, inputs, executed);
  result.against = options.against;
  if (!result.fits() || !reference.fits()) {
    return fmt::format("nothing to compare: {} does not fit\n",
                       result.fits() ? result.against : result.policy);
  }
  result.same_bits =
      result.loss == reference.loss && result.weights_digest == reference.weights_digest;
  std::string classes;
  if (options.given.has_data()) {
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
int ExecuteForReal(const RunOptions& options, const LoadedCase& loaded, Session& session) {
  if (options.exports.asks_for("densities") && !options.asked.compress) {
    throw UsageError("--export densities needs --compress all: densities are counted there");
  }
  const BackendFactories backends = BackendsOf(options, *loaded.inputs->trace());
  const Outcome outcome = RunCase(loaded.asked, *loaded.inputs, backends);
  RunResult result = ResultOf(loaded.asked, *loaded.inputs, outcome);
  std::string comparison;
  FindNeed(loaded.asked, *loaded.inputs, result);
  if (!options.against.empty()) comparison = Compare(options, backends, result);
  const bool good = result.fits() && (options.against.empty() || result.same_bits == true);
  std::string text = FormatResults({{{loaded, {result}}}}, options.format);
  const bool for_people = options.format.view().is_own_table();
  if (for_people && outcome.execution && outcome.execution->loss) {
    text += fmt::format("loss {} after {} iteration(s), weights {}\n", *outcome.execution->loss,
                        options.iterations, outcome.execution->weights_digest);
  }
  if (for_people && options.given.has_data() && outcome.execution) {
    text += fmt::format("top-1 {}\n", fmt::join(outcome.execution->top1, " "));
  }
  if (for_people) text += comparison;
  if (for_people && outcome.compression) {
    text += FormatStored(*outcome.trace, *outcome.compression);
  }
  std::vector<Export> files;
  if (result.fits()) {
    files = {DecisionsFile(loaded, options, outcome), PlanFile(options, outcome),
             options.exports.File("densities",
                                  [&](const Manifest&) {
                                    return FormatDensities(*outcome.trace,
                                                           outcome.compression->stored);
                                  }),
             options.exports.File("weights", [&](const Manifest&) {
               return FormatWeights(*outcome.trace, outcome.execution->weights);
             })};
  }
  if (options.asked.check) session.Remark(CheckedRemark("the report"));
  return session.Finish(text, options.output, files, good ? kOk : kNegative,
                        [&](Manifest& manifest) { Describe(options, loaded, manifest); });
}

int Execute(const RunOptions& options, Session& session) {
  if (!options.explain) CheckView(options.format.view(), ResultColumns());
  const Case asked = CaseOf(options);
  Case other = asked;
  other.policy = options.against;
  if (IsIsolated(asked) || IsIsolated(other)) return session.FinishIsolated(asked);
  const LoadedCase loaded{asked, std::make_shared<const Inputs>(asked)};
  if (options.kernels_from.empty()) {
    CheckPolicies({asked.policy.name()}, asked, loaded.inputs->trace()->training, session);
  }
  if (asked.backend != kSimulator) return ExecuteForReal(options, loaded, session);
  const Outcome outcome = RunCase(asked, *loaded.inputs);
  RunResult result = ResultOf(asked, *loaded.inputs, outcome);
  FindNeed(asked, *loaded.inputs, result);
  result.host_range = HostRangeOf(asked, *loaded.inputs, outcome);
  const Trace& trace = *outcome.trace;
  const Report& report = outcome.report;
  const std::string text =
      options.explain ? FormatExplained(loaded, options, outcome, result, session.progress())
                      : FormatResults({{{loaded, {result}}}}, options.format);
  const auto file = [&](const char* kind, auto format) {
    return options.exports.File(kind, [format](const Manifest&) { return format(); });
  };
  const std::vector<Export> exports{
      options.exports.File("trace",
                           [&](const Manifest& manifest) {
                             return FormatChromeTrace(trace, report, *loaded.inputs->cost(),
                                                      OriginOf(loaded, manifest));
                           }),
      file("memory", [&] { return FormatMemoryCsv(trace, report); }),
      file("schedule", [&] { return FormatScheduleCsv(trace, report); }),
      file("rewritten", [&] { return FormatTrace(trace); }),
      DecisionsFile(loaded, options, outcome),
      PlanFile(options, outcome),
      file("snapshot", [&] { return FormatSnapshot(trace, report); }),
      file("chakra", [&] { return FormatChakra(trace, report); })};
  if (options.asked.check) session.Remark(CheckedRemark("the report"));
  const int exit_code =
      session.Finish(text, options.output, result.fits() ? exports : std::vector<Export>(),
                     result.fits() ? kOk : kNegative,
                     [&](Manifest& manifest) { Describe(options, loaded, manifest); });
  if (!result.fits() && !options.exports.paths.empty()) {
    session.Remark("the workload does not fit: nothing was exported");
  }
  return exit_code;
}

}  // namespace

void AddRun(Command& program, Session& session) {
  Command& verb = program.Add("run", "Simulate one policy; exit code 1 if it does not fit");
  verb.examples = {"run resnet50:64 --memory 4GiB --policy mxnet",
                   "run vgg16:64 --memory 30% --policy vdnnpp --explain"};
  auto& options = verb.Runs(Execute, session);
  AddCaseOptions(verb, {"workload"}, options.asked);
  AddCaseOptions(verb, kMachineKeys, options.asked);
  AddCaseOptions(verb, {"memory", "policy", "backend"}, options.asked);
  options.format.Add(verb);
  const Option& policy = verb.Declared("--policy");
  const Option& backend = verb.Declared("--backend");
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
  verb.File("--weights", options.given.weights,
            "initial parameters, from a safetensors file with the names and shapes that spillway "
            "trace build writes; for training it may lack optimizer state")
      .OnlyFor(backend, real);
  const Option& images =
      verb.File("--images", options.given.images,
                "images or tokens from a safetensors file with one tensor and, if given, their "
                "labels, of one or more batches, which iterations read in turn; prints the class "
                "that the network finds most probable for each of the last batch")
          .OnlyFor(backend, real);
  verb.File("--text", options.given.text,
            "tokens that are the bytes of this file, which iterations read one after the other; "
            "labels are the next bytes")
      .OnlyFor(backend, real)
      .Excludes(images);
  AddOutput(verb, options.output, options.format);
  const std::vector<std::string> predicted{"sim"};
  verb.Flag("--explain", options.explain,
            "for each stall, say which commands waited, and which changes shorten the simulated "
            "iteration; for each storage that leaves the device, say when, and how long the "
            "iteration is if it stays; and say who holds the memory at its peak")
      .OnlyFor(backend, predicted);
  options.exports.Add(
      verb,
      {{"trace", "the iteration as Chrome/Perfetto JSON, for ui.perfetto.dev", predicted},
       {"memory", "the memory over the iteration as CSV, one line per change", predicted},
       {"schedule",
        "the iteration as CSV, layer by layer: parts, prefetches, memory, transfers, stalls",
        predicted},
       {"rewritten", "the trace that ran, as the policy rewrote it, for record", predicted},
       {"snapshot",
        "the memory over the iteration as a PyTorch memory snapshot (a pickle), for "
        "pytorch.org/memory_viz",
        predicted},
       {"chakra", "the iteration as a Chakra execution trace, for ASTRA-sim", predicted},
       {"densities",
        "with --compress: the share of words that are not zero of each feature map as CSV, which "
        "--compress takes as density=FILE",
        real},
       {"weights",
        "parameters and optimizer state after the last iteration as a safetensors file, which "
        "--weights reads",
        real},
       {"decisions", "every decision and placement as JSON"},
       {"plan", "the plan of joint as JSON, for --policy plan:file=FILE"}},
      &backend);
  verb.File("--kernels-from", options.kernels_from,
            "Stay in-core, with the kernels of a run that --export decisions wrote: the reference "
            "for its bits")
      .Excludes(policy);
}

}  // namespace spillway::cli
