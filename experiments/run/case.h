// A `Case` holds what a user asks for: a workload, a machine and a policy, parsed once into types.
//
// A key of a case has the same name as command-line option, as key of an experiment file, as axis
// of a sweep and in manifests. `CaseKeys` is the only table of these keys.

#ifndef SPILLWAY_EXPERIMENTS_RUN_CASE_H_
#define SPILLWAY_EXPERIMENTS_RUN_CASE_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/allocator_choice.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/compression_plan.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/prepared.h"
#include "traces/lowering/lowering.h"

namespace spillway {

// The time that PyTorch's host code takes for one operator without a profiler. With the profiler
// recording shapes and memory, it takes three to eight times as long. The value was chosen on the
// unprofiled steps of ten recordings on an H100 and two H200
// (experiments/evidence/pytorch/README.md).
inline constexpr Duration kOperatorTime = Duration::Microseconds(7);

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
  std::string workload;  // NETWORK:BATCH, or the path of a trace file
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

// One key of a case: its name, its documentation, and how to read and write its value.
struct CaseKey {
  enum class Kind : uint8_t {
    kText,
    kTexts,  // may be given several times
    kFlag,
  };

  const char* name;    // "charge-input"
  const char* column;  // the column of result rows: "memory_request"; nullptr if there is none
  Kind kind;
  const char* initial;  // the default as text; empty if there is none
  const char* values;   // "training|inference"; nullptr if any text may be given
  const char* help;
  // Sets the value from a text, which is "true" or "false" for a flag. Throws `UsageError` if the
  // text is invalid.
  void (*set)(Case&, const std::string& text);
  // Returns the value as text, which is empty if no value was given.
  std::string (*get)(const Case&);
  const char* empty = "no value is given";  // the error message for an empty text
  bool described = true;  // false: no result depends on the key, and manifests leave it out
};

// Returns all keys in the order in which a sweep varies them: the first key varies slowest.
std::span<const CaseKey> CaseKeys();
// Returns the key called `name`. REQUIRES: there is such a key.
const CaseKey& CaseKeyOf(std::string_view name);

// Returns the case as arguments of `spillway run` or `compare`. Options with their default values
// are left out, except the policy. If `policies` are given, they replace the policy of the case.
std::vector<std::string> ArgumentsOf(const Case& asked);
std::vector<std::string> ArgumentsOf(const Case& asked, const std::vector<std::string>& policies);
// Returns the arguments as one text, quoted for a shell.
std::string CommandOf(const Case& asked);
std::string CommandOf(const Case& asked, const std::vector<std::string>& policies);
// Returns `text` quoted so that a shell reads it as one word.
std::string Quoted(const std::string& text);

// Returns true iff `workload` is the path of a trace file, which ends in ".json" or ".zst".
bool IsTraceFile(std::string_view workload);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_CASE_H_
