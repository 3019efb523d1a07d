// spillway trace build|import|info|validate: makes and checks trace files.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/prepare.h"
#include "sim/core/report.h"
#include "traces/base/error.h"
#include "traces/base/text_stream.h"
#include "traces/format.h"
#include "traces/import/execution_trace.h"
#include "traces/import/how_to_record.h"
#include "traces/import/kineto.h"
#include "traces/import/pytorch_step.h"
#include "traces/import/recording_manifest.h"

namespace spillway::cli {
namespace {

// Returns "gpt2" for "recordings/gpt2.kineto.json.gz".
std::string NetworkOf(const std::filesystem::path& file) {
  const std::string name = file.filename();
  return name.substr(0, name.find('.'));
}

// Returns the largest sum of the sizes of storages that autograd held at one time, each from when
// it was first packed until the op before which it was last unpacked. Parameters and inputs, which
// live on in any case, do not count.
Bytes SavedAtPeak(const Trace& trace) {
  std::map<TensorId, std::pair<size_t, size_t>> spans;  // by storage: the ops from first to last
  for (const KeptForBackward& saved : trace.saved) {
    const TensorId storage = trace.Root(saved.tensor);
    const TensorKind kind = trace.tensor(storage).kind;
    if (saved.unpacked.empty() ||
        (kind != TensorKind::kActivation && kind != TensorKind::kGradient)) {
      continue;
    }
    auto& span = spans.try_emplace(storage, saved.packed, 0).first->second;
    span.second = std::max<size_t>(span.second, saved.unpacked.back());
  }
  std::vector<Bytes> changes(trace.ops.size() + 2);
  for (const auto& [storage, span] : spans) {
    changes[span.first] += trace.tensor(storage).size;
    changes[span.second + 1] -= trace.tensor(storage).size;
  }
  Bytes held, peak;
  for (const Bytes change : changes) peak = std::max(peak, held += change);
  return peak;
}

Columns<Trace> InfoColumns() {
  const auto ops_in = [](Phase phase) {
    return [phase](const Trace& trace) {
      return std::count_if(trace.ops.begin(), trace.ops.end(),
                           [&](const Op& op) { return op.phase == phase; });
    };
  };
  Columns<Trace> columns{
      {"workload", "", "network and batch, or the name in the file", &Trace::name},
      {"network", "", "its name", &Trace::network},
      {"batch", "1", "samples per iteration", &Trace::batch},
      {"preset", "", "how memory is counted", &Trace::preset},
      {"mode", "", "training or inference",
       [](auto& trace) { return trace.training ? "training" : "inference"; }},
      {"layers", "1", "of the network", [](auto& trace) { return trace.layers.size(); }},
      {"tensors", "1", "aliases included", [](auto& trace) { return trace.tensors.size(); }},
      {"ops", "1", "of one iteration", [](auto& trace) { return trace.ops.size(); }},
      {"forward_ops", "1", "ops of the forward phase", ops_in(Phase::kForward)},
      {"backward_ops", "1", "ops of the backward phase", ops_in(Phase::kBackward)},
      {"update_ops", "1", "ops of the update phase", ops_in(Phase::kUpdate)},
      {"gflops", "1e9", "operations of one iteration",
       [](auto& trace) {
         int64_t flops = 0;
         for (const Op& op : trace.ops) flops += op.flops();
         return static_cast<double>(flops) / 1e9;
       }},
  };
  for (const std::string_view name : TensorKindNames()) {
    columns.push_back({fmt::format("{}_bytes", name), "B", "tensors of this kind",
                       [kind = ParseTensorKind(name)](const Trace& trace) {
                         Bytes size;
                         for (const Tensor& tensor : trace.tensors) {
                           if (tensor.kind == kind && !tensor.alias_of) size += tensor.size;
                         }
                         return size;
                       }});
  }
  columns.push_back({"bound_layer_bytes", "B", "the least that any layer-wise policy needs",
                     [](auto& trace) { return LayerBound(trace, Bytes(512)); }});
  columns.push_back({"saved_tensors", "1", "that autograd kept for backward; 0 if not recorded",
                     [](auto& trace) { return trace.saved.size(); }});
  columns.push_back({"saved_bytes", "B", "the most that they held at one time, without parameters",
                     [](auto& trace) { return SavedAtPeak(trace); }});
  return columns;
}

std::string FormatInfo(const Trace& trace) {
  std::string text;
  for (const Column<Trace>& column : InfoColumns()) {
    std::string value;
    AppendCsv(value, column.get(trace));
    if (column.unit == "B") {
      value += fmt::format(" ({})", FormatBytes(Bytes(std::get<int64_t>(column.get(trace)))));
    }
    text += fmt::format("{:<26}{}\n", column.name, value);
  }
  return text;
}

void AddBuild(Command& trace, Session& session) {
  struct Options {
    Case asked;
    std::string output = "-";
  };
  Command& verb = trace.Add("build", "Lower a network and write its trace");
  verb.examples = {"trace build vgg16:64 -o vgg16.json.zst",
                   "trace build alexnet:1,mode=inference -o alexnet.json"};
  auto& options = verb.Keep<Options>();
  AddCaseOptions(verb, {"workload", "device"}, options.asked);
  verb.Text("-o,--output", options.output,
            "File to write, compressed if it ends in .zst; - for standard output");
  verb.Runs([&options, &session] {
    CheckEnding(options.output, {".json"});
    const Trace built = LoadTrace(options.asked);
    if (options.output == "-") {
      fmt::print("{}", FormatTrace(built));
    } else {
      const auto guard = session.interrupts().Hold();
      WriteTrace(built, options.output);
    }
    return kOk;
  });
}

// An imported trace with a simulation of it under the policy as-recorded.
struct ImportRow {
  Trace trace;
  ImportReport report;
  std::optional<SnapshotPeaks> snapshot;
  Metrics as_recorded;  // with the host times of the profiler
  Duration plain;       // an iteration with the host times without the profiler
};

Columns<ImportRow> ImportColumns() {
  const auto recording = [](const ImportRow& row) -> const Recording& {
    return *row.trace.recording;
  };
  const auto known = [](Duration time) {
    return time > Duration() ? std::optional(time) : std::nullopt;
  };
  return {
      {"workload", "", "network and batch", [](auto& row) { return row.trace.name; }},
      {"gpu", "", "GPU of the recording",
       [=](auto& row) {
         const std::string& gpu = recording(row).device;
         return gpu.empty() ? std::nullopt : std::optional(gpu);
       }},
      {"ops", "1", "operators that launch something",
       [](auto& row) { return row.trace.ops.size(); }},
      {"tensors", "1", "storages, and parts of them",
       [](auto& row) { return row.trace.tensors.size(); }},
      {"saved_tensors", "1", "storages of forward that backward reads",
       [](auto& row) { return row.report.saved; }},
      {"operators", "1", "in the profile", [](auto& row) { return row.report.operators; }},
      {"joined_operators", "1", "operators that the execution trace has, too",
       [](auto& row) { return row.report.joined; }},
      {"broken_nodes", "1", "nodes of the execution trace that are left out",
       [](auto& row) { return row.report.broken_nodes; }},
      {"broken_events", "1", "events of the profile that are left out",
       [](auto& row) { return row.report.broken_events; }},
      {"kernels_ms", "ms", "the times of all kernels and copies on the GPU",
       [](auto& row) { return row.report.kernels; }},
      {"unjoined_ms", "ms", "times of kernels and copies that belong to no operator",
       [](auto& row) { return row.report.unjoined; }},
      {"recorded_step_ms", "ms", "the step under the profiler",
       [=](auto& row) { return known(recording(row).step); }},
      {"iteration_ms", "ms", "the step, simulated with the recorded host times",
       [](auto& row) { return row.as_recorded.iteration; }},
      {"recorded_plain_step_ms", "ms", "the step without the profiler",
       [=](auto& row) { return known(recording(row).plain_step); }},
      {"plain_iteration_ms", "ms", "the step without the profiler, simulated",
       [](auto& row) { return row.plain; }},
      {"recorded_peak_allocated_bytes", "B",
       "the most that PyTorch's allocator gave out in the step",
       [](auto& row) { return row.report.peak_allocated; }},
      {"snapshot_peak_requested_bytes", "B", "the most requested in the snapshot's last step",
       [](auto& row) -> std::optional<Bytes> {
         if (!row.snapshot) return std::nullopt;
         return row.snapshot->last_requested;
       }},
      {"peak_requested_bytes", "B", "the most requested, simulated under as-recorded",
       [](auto& row) { return row.as_recorded.peak_requested; }},
      {"recorded_peak_reserved_bytes", "B",
       "the most that PyTorch's allocator held, in the snapshot's first steps too",
       [=](auto& row) { return recording(row).reserved; }},
      {"unused_bytes", "B", "memory that is held all the time and used by no operator",
       [](auto& row) { return row.report.unnamed_before; }},
      {"unnamed_bytes", "B",
       "memory given out in the step and held over ops, but of no known tensor",
       [](auto& row) { return row.report.unnamed; }},
      {"unplaced_bytes", "B", "memory of tensors whose allocation was not recorded",
       [](auto& row) { return row.report.unplaced; }},
  };
}

std::string FormatImport(const ImportRow& row) {
  std::string text;
  for (const Column<ImportRow>& column : ImportColumns()) {
    std::string value;
    AppendCsv(value, column.get(row));
    if (value.empty()) value = "-";
    text += fmt::format("{:<32}{:<16}{}\n", column.name, value, column.help);
  }
  return text;
}

// Simulates the step on the machine with both kinds of host times.
ImportRow RunAsRecorded(ImportedStep step, Case asked, std::optional<SnapshotPeaks> snapshot) {
  asked.policy = "as-recorded";
  ImportRow row{std::move(step.trace), step.report, snapshot, {}, {}};
  const auto run = [&](const HostTimes& host) {
    const Inputs inputs(asked, std::make_shared<const Trace>(WithHostTimes(row.trace, host)));
    return RunCase(asked, inputs).report.metrics;
  };
  row.as_recorded = run({HostTimes::Kind::kRecorded});
  row.plain = run({}).iteration;
  return row;
}

void AddImport(Command& trace, Session& session) {
  struct Options {
    std::string manifest, kineto, execution_trace, snapshot, network, step, output;
    int64_t batch = 0;
    FormatOption format;
  };
  Command& verb =
      trace.Add("import", "Make a trace of a training step that PyTorch's profiler recorded");
  verb.examples = {"trace import gpt2.manifest.json -o gpt2.json.zst",
                   "trace import --kineto gpt2.kineto.json.zst "
                   "--execution-trace gpt2.et.json.zst --batch 4 -o t.json"};
  verb.footer =
      "The files are those of torch.profiler (profile_memory=True, record_shapes=True) and of its "
      "ExecutionTraceObserver for one and the same step; python3 -m spillway_torch makes them, "
      "with a manifest that names them. Plain, .gz or .zst.";
  auto& options = verb.Keep<Options>();
  verb.File("manifest", options.manifest, "Manifest of python3 -m spillway_torch");
  verb.File("--kineto", options.kineto, "Trace of torch.profiler");
  verb.File("--execution-trace", options.execution_trace, "Execution trace of the same step");
  verb.File("--snapshot", options.snapshot,
            "Memory snapshot of the same program, whose peaks are set beside the trace's");
  verb.Text("--network", options.network, "Name of the network; default: the file's");
  verb.Number("--batch", options.batch, {1, int64_t{1} << 40},
              "Samples of a step; default: the manifest's, or 1");
  verb.Text("--step-time", options.step,
            "Time of a step without the profiler (52.05ms); default: the manifest's");
  verb.Text("-o,--output", options.output, "Trace to write, compressed if it ends in .zst")
      .Required();
  options.format.Add(verb);
  verb.Runs([&options, &session] {
    CheckEnding(options.output, {".json"});
    if (options.output == "-") {
      throw UsageError("trace import: standard output gets the report; -o takes a file");
    }
    CheckView(options.format.view(), ImportColumns());
    PyTorchRecording files;
    if (!options.manifest.empty()) files = ReadRecordingManifest(options.manifest);
    if (!options.kineto.empty()) files.kineto = options.kineto;
    if (!options.execution_trace.empty()) files.execution_trace = options.execution_trace;
    if (!options.snapshot.empty()) files.snapshot = options.snapshot;
    if (options.batch > 0) files.batch = options.batch;
    if (!options.step.empty()) files.plain_step = ParseDuration(options.step);
    if (files.kineto.empty() || files.execution_trace.empty()) {
      throw UsageError(fmt::format(
          "trace import: give a manifest, or both --kineto, for kernels and memory, and "
          "--execution-trace, for operands{}",
          kHowToRecord));
    }
    ImportOptions import;
    import.network = !options.network.empty() ? options.network
                     : !files.name.empty()    ? files.name
                                              : NetworkOf(files.kineto);
    import.batch = files.batch;
    import.framework = files.framework;
    import.plain_step = files.plain_step;
    import.tf32_matmuls = files.tf32_matmuls;
    import.tf32_convolutions = files.tf32_convolutions;
    import.kineto_file = files.kineto.string();
    import.execution_trace_file = files.execution_trace.string();
    TextStream kineto_text(files.kineto);
    const KinetoTrace kineto = ReadKineto(kineto_text);
    TextStream execution_text(files.execution_trace);
    const ExecutionTrace execution = ReadExecutionTrace(execution_text);
    std::optional<SnapshotPeaks> snapshot;
    if (!files.snapshot.empty()) {
      snapshot = PeaksOf(files.snapshot, kineto);
      import.requested_before = snapshot->held_before_last;
    }
    ImportedStep step = ImportStep(kineto, execution, import);
    if (snapshot) {
      Bytes& reserved = step.trace.recording->reserved;
      reserved = std::max(reserved, snapshot->reserved);
    }
    Case asked;
    if (const auto device = DeviceOf(step.trace.recording->device)) asked.device = device->name;
    const ImportRow row = RunAsRecorded(std::move(step), asked, snapshot);
    const auto guard = session.interrupts().Hold();
    WriteTrace(row.trace, options.output);
    session.Print(FormatAs(options.format.view(), ImportColumns(), {&row, 1},
                           "spillway.trace-import/v1", [&] { return FormatImport(row); }));
    return kOk;
  });
}

void AddInfo(Command& trace, Session& session) {
  struct Options {
    Case asked;
    FormatOption format;
  };
  Command& verb = trace.Add("info", "Count tensors, ops, bytes and operations");
  verb.examples = {"trace info vgg16:64", "trace info gpt2.json.zst --format json"};
  auto& options = verb.Keep<Options>();
  AddCaseOptions(verb, {"workload", "device"}, options.asked);
  options.format.Add(verb);
  verb.Runs([&options, &session] {
    const Trace loaded = LoadTrace(options.asked);
    return session.Finish(FormatAs(options.format.view(), InfoColumns(), {&loaded, 1},
                                   "spillway.trace-info/v1", [&] { return FormatInfo(loaded); }),
                          kOk);
  });
}

void AddValidate(Command& trace) {
  Command& verb = trace.Add("validate", "Check trace files; exit code 3 at the first bad one");
  verb.examples = {"trace validate vgg16.json.zst", "trace validate vgg16.json.zst gpt2.json.zst"};
  auto& paths = verb.Keep<std::vector<std::string>>();
  verb.Texts("files", paths, "Trace files").Required();
  verb.Runs([&paths] {
    for (const std::string& path : paths) {
      const Trace valid = ReadTrace(path);
      fmt::print("{}: ok, {} tensors, {} ops\n", path, valid.tensors.size(), valid.ops.size());
    }
    return kOk;
  });
}

}  // namespace

void AddTrace(Command& program, Session& session) {
  Command& verb = program.Add("trace", "Build, import, inspect and validate trace files");
  AddBuild(verb, session);
  AddImport(verb, session);
  AddInfo(verb, session);
  AddValidate(verb);
}

}  // namespace spillway::cli
