// Searches for the largest batch, the deepest network or the longest sequence that fits under a
// policy.
//
// Fitting is not monotone: a larger tensor may find a better place in a fragmented pool, or make a
// policy decide differently. A `Limit` is therefore a value that fits in a run, while no value from
// the next one up to `scanned_to` fits. It says nothing about values above `scanned_to`.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/run/inputs.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {

// The number in which the workloads of a family differ.
enum class LimitQuantity : uint8_t { kBatch, kDepth, kLength };
// Returns "batch", "depth" or "length".
std::string_view Name(LimitQuantity quantity);

// A `WorkloadFamily` is a set of workloads that differ in one number.
class WorkloadFamily {
 public:
  // Returns the family of all batches of a network, for example "vgg16". Throws `UsageError` if
  // `network` is a trace file, has a batch, or is unknown.
  static WorkloadFamily OfBatches(std::string_view network);
  // Returns the family of all depths of a network. In `workload` a name replaces one number, as in
  // the SuperNeurons paper: "resnet(6,32,n3,6):16". The name is n, or n followed by a digit from 1
  // to 9. Throws `UsageError` if there is not exactly one name, or if there is no batch.
  static WorkloadFamily OfDepths(std::string_view workload);

  // Returns the family of all lengths of a network on sequences, with its batch: "gpt2:8", or
  // "gpt2@1024:8", whose length does not matter. Throws `UsageError` if the network reads images,
  // or if there is no batch.
  static WorkloadFamily OfLengths(std::string_view workload);

  // Returns the workload with the number. REQUIRES: value is in [1, most()].
  Workload At(int64_t value) const;
  // Returns the largest value of the family.
  int64_t most() const { return most_; }
  // Returns the text that the family was made from: "vgg16", "resnet(6,32,n3,6):16".
  const std::string& text() const { return text_; }
  LimitQuantity quantity() const { return quantity_; }

 private:
  WorkloadFamily(LimitQuantity quantity, std::string_view text, std::string_view network,
                 int64_t batch, int64_t most)
      : quantity_(quantity), text_(text), before_(network), batch_(batch), most_(most) {}

  LimitQuantity quantity_;
  std::string text_;
  std::string before_, after_;  // the network's name before and after the number that varies
  int64_t batch_;               // 0 if the batch varies
  int64_t most_;
};

// Returns the depth of a residual network "resnet(n1,n2,n3,n4)" as the SuperNeurons paper counts
// it: 3 (n1 + n2 + n3 + n4) + 2 layers. Returns nullopt for other networks.
std::optional<int64_t> ResNetDepth(std::string_view network);

struct Limit {
  int64_t largest = 0;  // the largest value that fits in a run; 0 if none does
  // No value in [largest + 1, scanned_to] fits. Equal to `largest` if that is the largest allowed
  // value.
  int64_t scanned_to = 0;
  std::vector<int64_t> misfits;  // all values that were tried and do not fit, ascending
  int trials = 0;                // the number of values that were tried

  // Returns true iff every value that was tried and does not fit is larger than `largest`.
  bool monotone() const { return misfits.empty() || misfits.front() > largest; }
};

// Returns the limit among the values in [1, most]. The search first doubles its steps up from the
// largest value that fits until a value does not fit. It then bisects between the two. It then
// tries each of the `scan` values above the result, and starts over from the first of them that
// fits. `fits` is called at most once for each value. REQUIRES: most >= 1, scan >= 1.
Limit FindLimit(int64_t most, int64_t scan, const std::function<bool(int64_t)>& fits);

// A `LimitSearch` describes a search for the limit of a case whose workload is one of a family.
struct LimitSearch {
  WorkloadFamily family;
  Case asked;     // its workload is not used; `memory`, if given, is a size
  Device device;  // the device of `asked`
  int64_t scan = 16;

  // Returns the device memory of the runs.
  Bytes memory() const { return asked.memory ? *asked.memory->bytes() : device.memory; }
};

struct LimitResult {
  const LimitSearch* search = nullptr;  // outlives the result
  std::string policy;
  LoadedCase at;  // the case at the limit, or at 1 if nothing fits
  Limit limit;
  std::optional<Metrics> metrics;  // the metrics of the run at the limit; nullopt if nothing fits
  std::string next_reason;         // why limit.largest + 1 does not fit, or how the policy failed
  std::string next_brief;          // it in half a line
  bool failed = false;             // true if the policy failed; then `limit` is empty
};

// Returns the limit of one policy. REQUIRES: `search` outlives the result. Calls `progress` with
// each value before it is tried. If `search.asked.check` is set, verifies the runs at the limit and
// at the next value. If the policy fails or a check finds a violation, the result has `failed`.
// Throws all errors of `Inputs` and `Run` but `PolicyError`. Safe to call from several threads.
LimitResult FindLimit(const LimitSearch& search, const PolicyChoice& policy,
                      const std::function<void(int64_t value)>& progress);

Columns<LimitResult> LimitColumns(LimitQuantity quantity);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_
