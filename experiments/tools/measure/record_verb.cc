// The verb `spillway record` measures the kernels of networks on the GPU of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "experiments/tools/measure/calibration_fit.h"
#include "experiments/tools/measure/recording_option.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct RecordCommand {
  std::vector<std::string> workloads;
  std::string output = "traces/recorded/h200";
  RecordingOption recording;
  bool add = false;
};

// Returns the device for which an in-core iteration is predicted. The device file that
// describes the GPU gives it; without such a file it is the H200. The times of recorded kernels do
// not depend on it.
Device DeviceOf(const CudaMachine& machine) {
  Device device = LoadDevice("h200");
  for (const std::string& name : DeviceNames()) {
    const Device known = LoadDevice(name);
    if (Describes(known, machine.gpu())) device = known;
  }
  device.memory = std::min(device.memory, RoundDown(machine.free_memory(), Bytes::GiB(1)));
  return device;
}

// Returns the traces for which a table is made: a network under all presets, or the trace in a
// file.
std::vector<Trace> TracesOf(const std::string& workload) {
  const Case asked = WithWorkload({}, workload);
  if (IsTraceFile(asked.workload)) return {LoadTrace(asked)};
  if (!asked.preset) return LowerForAllPresets(asked);
  throw UsageError(fmt::format("workload '{}': a table is for all presets", workload));
}

int Execute(RecordCommand command, Session& session) {
  // Wrong arguments fail before the GPU is opened.
  std::vector<std::vector<Trace>> workloads;
  for (const std::string& text : command.workloads) {
    workloads.push_back(TracesOf(text));
  }
  RecordingOption& option = command.recording;
  option.Check();
  const std::string given = option.record.math;
  option.record.math = MathFor(workloads.front().front(), given);
  for (const std::vector<Trace>& traces : workloads) {
    if (MathFor(traces.front(), given) == option.record.math) continue;
    throw UsageError(
        fmt::format("the products of '{}' and '{}' are of different arithmetics, fp32 and tf32; "
                    "record them one after the other",
                    workloads.front().front().name, traces.front().name));
  }
  const auto machine =
      Cuda().open({option.devices.front(), option.record.math, option.record.seed});
  const auto recording = option.Open(*machine, session.progress());
  CreateDirectory(command.output);  // only if there is a GPU
  CudaRun run;
  run.digest = false;
  BackendFactories backends;
  backends.Add("cuda", CudaFactory(machine, run));
  const Device device = DeviceOf(*machine);
  for (const std::vector<Trace>& traces : workloads) {
    const std::filesystem::path path = std::filesystem::path(command.output) /
                                       RecordedTableName(TableNetwork(traces[0]), traces[0].batch);
    std::optional<CostTable> kept;
    if (command.add && std::filesystem::exists(path)) {
      kept = ReadCostTable(path);
      recording->Keep(*kept, path.string());
    }
    CostTable table =
        option.Table(*recording, traces[0].name, traces,
                     kept ? std::optional(kept->in_sequence) : std::nullopt, device, backends);
    if (kept) AddMissing(*kept, table);
    const auto guard = session.interrupts().Hold();
    WriteCostTable(table, path);
    session.progress().Wipe();
    fmt::print("{}: {} entries, {}, cuDNN {}, {}; {} more per kernel in a sequence\n",
               path.string(), table.entries.size(), table.provenance.gpu, table.provenance.cudnn,
               table.provenance.math, FormatDuration(table.in_sequence));
  }
  return kOk;
}

}  // namespace

void AddRecord(Command& program, Session& session) {
  Command& verb = program.Add(
      "record", "Measure the kernels of networks on this machine's GPU; exit code 5 without one");
  verb.examples = {"record gpt2@1024:4,precision=bf16,optimizer=adamw -o tables",
                   "record alexnet:8 --store kernels.sqlite"};
  auto& command = verb.Keep<RecordCommand>();
  verb.Texts("workloads", command.workloads,
             std::string(CaseKeyOf("workload").help) + "; one or more")
      .Required();
  verb.Text(
      "-o,--output", command.output,
      "Directory for NETWORK-BATCH.json.zst, which --cost reads, or NETWORK-bf16-BATCH.json.zst; "
      "a table that is there is replaced");
  command.recording.Add(verb);
  verb.Number("--min-repeats", command.recording.record.min_repeats, {5, 10000},
              "Least repeats of each kernel");
  verb.Number("--seed", command.recording.record.seed, {}, "Seed of the random operands");
  verb.Flag("--add", command.add,
            "Keep what the tables in the directory hold and record only what they lack; one table "
            "may serve all modes, kinds of attention, optimizers and precisions");
  verb.Runs([&command, &session] { return Execute(command, session); });
}

}  // namespace spillway::cli
