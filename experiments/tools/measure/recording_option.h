// How a verb measures kernels: --micro-batch, --min-time, --store, --devices and --math.

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
#include "experiments/run/assembler.h"
#include "experiments/run/execute.h"
#include "experiments/tools/measure/kernel_recording.h"

namespace spillway::cli {

struct RecordingOption {
  RecordOptions record;  // of every kernel
  std::vector<std::string> micro_batches;
  std::vector<int> devices{0};
  std::string store;

  void Add(Command& verb);

  // What can be said without a GPU. Throws `UsageError`.
  void Check() const;

  // A recording on the GPUs, the first of which is the machine's, that shows its progress. Throws
  // `EnvironmentError` if there is no such GPU, `InputError` if they differ, and as the store does.
  // REQUIRES: this and the bar outlive it.
  std::unique_ptr<CostRecording> Open(const CudaMachine& machine, ProgressBar& bar);

  // The table of what the traces need, with what the first of them takes in sequence: `in_sequence`
  // if it is given, as the store knows it, or measured now by the backend "cuda".
  CostTable Table(CostRecording& recording, const std::string& workload,
                  std::span<const Trace> traces, std::optional<Duration> in_sequence,
                  const Device& device, const BackendFactories& backends) const;

 private:
  std::shared_ptr<BenchmarkStore> opened_;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_RECORDING_OPTION_H_
