#include "experiments/tools/measure/recording_option.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/tools/measure/validation.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

// Returns why the text is no valid time to measure for, or an empty string if it is valid.
std::string TimeProblem(const std::string& text) {
  try {
    return ParseDuration(text) > Duration() ? "" : "expected more than 0";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

void RecordingOption::Add(Command& verb) {
  verb.Choice("--math", record.math, {"fp32", "tf32"}, "Arithmetic of convolutions and products");
  verb.Texts("--micro-batch", micro_batches,
             "Also record convolutions at smaller batches: powerOfTwo (1, 2, 4 and so on), all, "
             "undivided (none), or a number; one or more")
      .Type("powerOfTwo|all|undivided|BATCH")
      .Check(MicroBatchProblem);
  verb.Setting(
          "--min-time", FormatDuration(record.min_time),
          [this](const std::string& text) { record.min_time = ParseDuration(text); },
          "Least time of each kernel's repeats together, 200 repeats at most; less is quicker if "
          "there are many kernels")
      .Check(TimeProblem);
  verb.File("--store", store,
            "Benchmark store (SQLite): its entries are not measured again, new ones are added");
  verb.Numbers("--devices", devices, {0, 1023},
               "GPUs of one kind that measure at the same time, by CUDA's numbers: 0,1");
}

void RecordingOption::Check() const {
  std::vector<int> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    throw UsageError(fmt::format("--devices: GPU {} stands twice", *twice));
}

std::unique_ptr<CostRecording> RecordingOption::Open(const CudaMachine& machine, ProgressBar& bar) {
  const std::string first = Cuda().describe(devices.front());
  for (const int device : devices) {
    const std::string other = Cuda().describe(device);
    if (other != first) {
      throw InputError(
          fmt::format("--devices: GPU {} is {}, but GPU {} is {}: record different GPUs separately",
                      devices.front(), first, device, other));
    }
  }
  if (!store.empty()) opened_ = std::make_shared<BenchmarkStore>(store);
  const auto measure = [this, &bar](const Trace& trace, const std::set<EntryKey>& wanted,
                                    int device, const auto& done) {
    RecordOptions options = record;
    options.device = device;
    options.only = wanted;
    options.measured = done;
    options.progress = [&bar](const RecordProgress& progress) {
      if (!progress.note.empty()) {
        bar.Note(fmt::format("{} batch {}: {}", progress.signature, progress.batch, progress.note));
      } else {
        bar.Set(progress.entry, progress.entries, progress.signature);
      }
    };
    static_cast<void>(Cuda().record(trace, options));
  };
  return std::make_unique<CostRecording>(
      CostRecording::Options{machine.gpu(), {record.math, machine.cudnn()}, devices, opened_},
      measure);
}

CostTable RecordingOption::Table(CostRecording& recording, const std::string& workload,
                                 std::span<const Trace> traces, std::optional<Duration> in_sequence,
                                 const Device& device, const BackendFactories& backends) const {
  CostTable table =
      recording.Table(workload, traces, MicroBatchesOf(micro_batches, traces.front().batch));
  if (!in_sequence && opened_) {
    in_sequence = opened_->InSequence(LibraryOf(table.provenance), workload);
  }
  table.in_sequence =
      in_sequence ? *in_sequence : MeasureInSequence(table, traces.front(), device, backends);
  if (opened_) opened_->Put({workload, table.provenance, table.in_sequence, {}});
  return table;
}

std::string MathFor(const Trace& trace, const std::string& given) {
  const std::string_view tf32 = Name(Arithmetic::kTf32);
  return ArithmeticOf(trace) == tf32 ? std::string(tf32) : given;
}

}  // namespace spillway::cli
