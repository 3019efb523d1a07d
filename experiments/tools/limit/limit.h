// The largest batch, or the deepest network, that fits under a policy.
//
// Fitting is not monotone: a larger tensor may land better in a fragmented pool, and a policy may
// choose otherwise. So an answer is a value that was seen to fit, the proof that the next one does
// not, and how far above it nothing fits either. Nothing is claimed of what lies beyond.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/run/setup.h"
#include "traces/zoo/zoo.h"

namespace spillway {

// Workloads that differ in one number.
class WorkloadFamily {
 public:
  // Of all batches: `network` is a name, "vgg16". Throws `UsageError`.
  static WorkloadFamily OfBatches(std::string_view network);
  // Of all depths: a network and its batch with a name in the place of one number, as SuperNeurons
  // writes it, "resnet(6,32,n3,6):16". The name is n, or n and a digit. Throws `UsageError`.
  static WorkloadFamily OfDepths(std::string_view workload);

  // REQUIRES: value is in [1, most()].
  Workload At(int64_t value) const;
  int64_t most() const { return most_; }
  // As given: "vgg16", "resnet(6,32,n3,6):16".
  const std::string& text() const { return text_; }
  bool deepens() const { return batch_ > 0; }

 private:
  WorkloadFamily(std::string_view text, std::string_view network, int64_t batch, int64_t most)
      : text_(text), before_(network), batch_(batch), most_(most) {}

  std::string text_;
  std::string before_, after_;  // of the number, in the network's name
  int64_t batch_;               // 0: what varies
  int64_t most_;
};

// SuperNeurons' depth of a residual network "resnet(n1,n2,n3,n4)": 3 (n1 + n2 + n3 + n4) + 2.
// nullopt for other names.
std::optional<int64_t> ResNetDepth(std::string_view network);

struct Limit {
  int64_t largest = 0;  // seen to fit; 0 if nothing was
  // From largest + 1 to here nothing fits. Equal to `largest` if no more was allowed.
  int64_t scanned_to = 0;
  std::vector<int64_t> misfits;  // all values seen not to fit, ascending
  int trials = 0;

  // Something that is smaller than what fits does not.
  bool monotone() const { return misfits.empty() || misfits.front() > largest; }
};

// Doubling steps up from the largest value that fits to one that does not, then bisection between
// the two, then every one of the `scan` values above; from one that fits there it goes on likewise.
// `fits` is called for each value at most once. REQUIRES: most >= 1, scan >= 1.
Limit FindLimit(int64_t most, int64_t scan, const std::function<bool(int64_t)>& fits);

// Where a search takes place, all but the policy.
struct LimitSetup {
  WorkloadFamily family;
  std::string preset = "torch";
  bool training = true;
  Setup run = {};                 // all but trace and cost model, which are the workload's
  std::string cost = "roofline";  // as for `LoadCost`
  bool deterministic = false;
  bool check = false;  // verify the runs at the limit and above it with the independent checker
  int64_t scan = 16;
};

struct LimitResult {
  std::string policy;
  Limit limit;
  std::optional<Metrics> metrics;  // of the largest that fits
  std::string next_reason;         // why the next one does not
};

// The limit of one policy. `progress` is told each value before it is tried. Throws `PolicyError`
// if a check finds a violation, else as `Simulate` and `LoadCost`. Safe to call from several
// threads.
LimitResult FindLimit(const LimitSetup& setup, const std::string& policy,
                      const std::function<void(int64_t value)>& progress);

// `setup` outlives them.
Columns<LimitResult> LimitColumns(const LimitSetup& setup);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_LIMIT_LIMIT_H_
