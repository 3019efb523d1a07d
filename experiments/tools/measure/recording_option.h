// The options with which a verb measures kernels: --micro-batch, --min-time, --store, --devices and
// --math.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_RECORDING_OPTION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_RECORDING_OPTION_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/recorder.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/run/execute.h"
#include "experiments/tools/measure/kernel_recording.h"

namespace spillway::cli {

struct RecordingOption {
  RecordOptions record;  // apply to every kernel
  std::vector<std::string> micro_batches;
  std::vector<int> devices{0};
  std::string store;

  void Add(Command& verb);

  // Checks the options that need no GPU to be checked. Throws `UsageError` if a device is given
  // twice.
  void Check() const;

  // Returns a recording on the GPUs `devices` that shows its progress in `bar`. Throws
  // `EnvironmentError` if a GPU does not exist, `InputError` if the GPUs differ, and the errors
  // of the store. REQUIRES: the first GPU is that of `machine`; this object and `bar` outlive the
  // recording.
  std::unique_ptr<CostRecording> Open(const CudaMachine& machine, ProgressBar& bar);

  // Returns the table of the entries that the traces need. Its `in_sequence` is the argument if
  // given, else the value in the store. If the store has none, it is measured for the first trace
  // by the backend "cuda". Adds the value to the store.
  CostTable Table(CostRecording& recording, const std::string& workload,
                  std::span<const Trace> traces, std::optional<Duration> in_sequence,
                  const Device& device, const BackendFactories& backends) const;

 private:
  std::shared_ptr<BenchmarkStore> opened_;
};

// Returns the arithmetic with which a backend computes the trace's products in float32: "tf32" if
// the trace says so, otherwise `given`, the value of --math.
std::string MathFor(const Trace& trace, const std::string& given);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_RECORDING_OPTION_H_
