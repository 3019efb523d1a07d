// A `Case` holds what a user asks for: a workload, a machine and a policy, parsed once into types.

#ifndef SPILLWAY_EXPERIMENTS_RUN_CASE_H_
#define SPILLWAY_EXPERIMENTS_RUN_CASE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/changes/step_changes.h"
#include "experiments/run/allocator_choice.h"
#include "experiments/run/compression_plan.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/prepared.h"
#include "traces/lowering/lowering.h"

namespace spillway::lab {

// The time that PyTorch's host code takes for one operator without a profiler. With the profiler
// recording shapes and memory, it takes three to eight times as long. The value was chosen on the
// unprofiled steps of ten recordings on an H100 and two H200
// (experiments/evidence/pytorch/README.md).
inline constexpr Duration kOperatorTime = Duration::Microseconds(7);

// The time for one operator on the fastest and on the slowest host that was measured. The first is
// the default, because the recordings that it was chosen on would take 1.5 times as long with 15
// us. Of the 67 steps in recordings-*.csv there, 95 % took less than the second.
inline constexpr Duration kFastestHost = kOperatorTime;
inline constexpr Duration kSlowestHost = Duration::Microseconds(87);

// The host's time before each launch of a recorded trace.
struct HostTimes {
  enum class Kind : uint8_t {
    kPlain,     // the time without a profiler: at most `per_operator` for each operator
    kRecorded,  // the recorded time, which includes that of the profiler
    kNone,      // no time: the GPU never waits for the host
  };

  Kind kind = Kind::kPlain;
  Duration per_operator = kOperatorTime;

  bool operator==(const HostTimes&) const = default;
};

// One run, as a user asks for it.
struct Case {
  // NETWORK:BATCH, or the path of a trace file. `WorkloadText` adds the options, which follow.
  std::string workload;
  std::optional<std::string> preset =
      std::nullopt;                             // nullopt: "torch", or the preset of the trace file
  std::optional<bool> training = std::nullopt;  // nullopt: true, or the mode of the trace file
  // These concern networks of the zoo; nullopt: kFused, the rule of the preset, kFp32, one
  // micro-batch, no clipping and one chunk.
  std::optional<AttentionKind> attention = std::nullopt;
  std::optional<OpType> optimizer = std::nullopt;
  std::optional<Precision> precision = std::nullopt;
  std::optional<int64_t> accumulate = std::nullopt;
  std::optional<double> clip_norm = std::nullopt;
  std::optional<int64_t> loss_chunks = std::nullopt;
  // These concern trace files.
  StepChanges changes = {};
  HostTimes host = {};
  std::string device = "h200";          // a specification for `LoadDevice`
  std::vector<std::string> pools = {};  // specifications for `AddPool`
  CostSource cost = "auto";
  AllocatorChoice allocator = "best-fit";
  std::optional<CompressionRequest> compress = std::nullopt;
  std::string backend = kSimulator;
  std::optional<MemoryBudget> memory = std::nullopt;  // nullopt: all memory of the device
  bool deterministic = false;
  bool charge_input = false;
  bool check = false;
  PolicyChoice policy = "liveness";
  // The limits of a run of a plugin's policy, which isolation.h explains.
  Duration timeout = Duration::Milliseconds(600'000);
  bool in_process = false;
  int iterations = 0;  // number of iterations of a backend that executes
};

// Returns true iff `workload` is the path of a trace file, which ends in ".json" or ".zst".
inline bool IsTraceFile(std::string_view workload) {
  return workload.ends_with(".json") || workload.ends_with(".zst");
}

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_CASE_H_
