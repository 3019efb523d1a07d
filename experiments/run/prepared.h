// A `Draft` is a run whose choices may be open. A `Prepared` is a run with nothing left to decide.
// An `Outcome` is the result of a run.
//
// A `Case` (case.h) says what a user asked for, and `Inputs` (inputs.h) makes a draft of it.
// `Decide` (prepare.h) makes the choices of the draft and turns it into a `Prepared`, which is the
// only description of a run that `Run` (run.h) takes.

#ifndef SPILLWAY_EXPERIMENTS_RUN_PREPARED_H_
#define SPILLWAY_EXPERIMENTS_RUN_PREPARED_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/run/compression_plan.h"
#include "policies/plugin/library.h"
#include "sim/alloc/planned.h"
#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "sim/runtime/parts.h"
#include "traces/trace.h"

namespace spillway::lab {

class BackendFactories;
struct Case;

// The name of the backend that predicts. All other backends execute.
inline constexpr const char* kSimulator = "sim";

// A function that makes a policy object. It is called once per run.
using PolicyMaker = std::function<std::unique_ptr<Policy>()>;

// A `PolicyChoice` is a policy under the name that a user gave it, with a function that makes its
// objects.
class PolicyChoice {
 public:
  // Parses a specification as for `PolicyLibrary`. Only `Make` looks up the policy's name.
  PolicyChoice(std::string_view specification);  // NOLINT(google-explicit-constructor)
  PolicyChoice(const std::string& specification) : PolicyChoice(std::string_view(specification)) {}
  PolicyChoice(const char* specification) : PolicyChoice(std::string_view(specification)) {}
  // Makes a choice of an internal policy of the program, which no specification names.
  PolicyChoice(std::string name, PolicyMaker make)
      : name_(std::move(name)), make_(std::move(make)) {}
  // Returns a choice that makes the first candidate, and whose `Candidates` are all `candidates`:
  // the allocator `auto` may take any of them. REQUIRES: `candidates` is not empty.
  static PolicyChoice OneOf(std::vector<PolicyChoice> candidates);

  const std::string& name() const { return name_; }
  // The parts of the specification, which are empty for an internal policy.
  const PolicySpec& spec() const { return spec_; }
  // Makes a policy object. Throws the errors of `PolicyLibrary::Make`.
  std::unique_ptr<Policy> Make() const { return make_(); }

  // Returns the policies that the allocator `auto` tries for this choice: the argument of `OneOf`,
  // `PolicyLibrary::Candidates` of a specification, or only this policy if it is internal.
  std::vector<PolicyChoice> Candidates() const;

 private:
  std::string name_;
  PolicySpec spec_;
  PolicyMaker make_;
  std::shared_ptr<const std::vector<PolicyChoice>> candidates_;  // the argument of `OneOf`
};

// An `Arena` manages the device memory of a run, by an allocator or by offsets planned for the run.
class Arena {
 public:
  using Maker = std::function<std::unique_ptr<Allocator>(Bytes capacity, Bytes alignment)>;

  // Makes an arena that uses the allocator of a specification as for `MakeAllocator`. Throws
  // `UsageError` if the specification cannot be parsed.
  Arena(std::string_view allocator);  // NOLINT(google-explicit-constructor)
  Arena(const std::string& allocator) : Arena(std::string_view(allocator)) {}
  Arena(const char* allocator) : Arena(std::string_view(allocator)) {}
  // Makes an internal arena of the program, for which results show `name`.
  Arena(std::string name, Maker make) : name_(std::move(name)), make_(std::move(make)) {}

  // Returns an arena that serves every run whose live blocks fit in total. Runs from which offsets
  // are planned are recorded on it.
  static Arena Unplanned(std::string name);
  // Returns an arena with offsets planned for the run of one policy. Trial runs of other policies
  // get `Unplanned(name)`.
  static Arena Planned(std::string name, std::shared_ptr<const AllocationPlan> plan);
  // Returns an arena with the name of this arena that makes its allocators with `make`, which
  // records requests. Trial runs of other policies get this arena, which does not record.
  Arena RecordedBy(Maker make) const;

  const std::string& name() const { return name_; }
  // The offsets planned ahead, or nullptr if an allocator places each block when it is requested.
  const std::shared_ptr<const AllocationPlan>& plan() const { return plan_; }
  // Returns the arena that trial runs of other policies get.
  Arena ForTrials() const { return for_trials_ ? *for_trials_ : *this; }
  // Returns how many bytes of a run's memory the arena hands out.
  Bytes MemoryOf(Bytes memory) const { return plan_ ? plan_->memory : memory; }
  std::unique_ptr<Allocator> Make(Bytes capacity, Bytes alignment) const {
    return make_(capacity, alignment);
  }

 private:
  std::string name_;
  Maker make_;
  std::shared_ptr<const AllocationPlan> plan_;
  std::shared_ptr<const Arena> for_trials_;  // nullptr: this arena
};

// The amount of memory that a run touches.
struct Footprint {
  Bytes device;  // bytes from the start of the arena
  // Bytes from the start of each pool outside, by its number. In a run with compression each
  // storage that is not kept compressed has its own pinned memory: the host's entry is then the sum
  // of the blocks of these storages.
  std::array<Bytes, kMaxPools> outside;
};

// A run that can be simulated as it is, and whose fields passes and callers set.
struct Draft {
  std::shared_ptr<const Trace> trace;  // validated
  Device device;
  std::shared_ptr<const CostModel> cost;
  Bytes memory;  // device memory of the run; `Bytes::Unlimited()` for no limit
  Arena arena = "best-fit";
  PolicyChoice policy = "liveness";
  RuntimeOptions options = {};
  // nullptr if offloaded storages are kept uncompressed in pinned memory.
  std::shared_ptr<const CompressionPlan> compression = nullptr;
  std::string backend = kSimulator;
  std::optional<Footprint> footprint =
      std::nullopt;  // for backends that take memory before the run
  // The plan that the policy made in an earlier run (`Report::plan`); empty if there is none.
  std::string policy_plan = {};

  // Returns this run on the simulator, to its steady state, in place of its backend and its number
  // of iterations.
  Draft Prediction() const;
};

// A run with nothing left to decide. Only `Decide` makes one, and nothing changes it afterwards.
struct Prepared {
  const Draft run;

 private:
  friend Prepared Decide(const Case& asked, Draft run, const BackendFactories& backends);
  explicit Prepared(Draft decided) : run(std::move(decided)) {}
};

// Returns a shared pointer that does not own `value`. REQUIRES: `value` outlives the run.
template <typename T>
std::shared_ptr<const T> Borrow(const T& value) {
  return {std::shared_ptr<void>(), &value};
}

// The number of first iterations that are not timed, in which libraries load and caches and clocks
// settle.
inline constexpr int kWarmUp = 3;

// The results of a run on real bytes that its report does not have.
struct Execution {
  std::optional<float> loss;  // the last iteration's loss
  std::vector<int64_t> top1;  // the last iteration's, by sample; see `Executor::top1`
  // SHA-256 over all parameters and optimizer state (momentum, running statistics) after the last
  // iteration, in the order of the trace. It must not depend on the policy, the allocator, the
  // memory or the order of execution. Empty if the digest was not asked for.
  std::string weights_digest;
  // The times of all iterations, or empty if the backend has no clock. The last iteration is slower
  // because of its time stamps.
  std::vector<Duration> iteration_times;
  // The contents that the digest is of, if they were asked for.
  std::string weights;

  // Returns the median of `iteration_times` without the first `kWarmUp` and the last one. If no
  // time is left, returns the last time. REQUIRES: the backend has a clock.
  Duration typical_iteration() const;
};

// The result of a run.
struct Outcome {
  Report report;  // the last iteration's; on the CPU, times are places in the order of execution
  std::shared_ptr<const Trace> trace;             // the trace that ran, as the policy rewrote it
  std::optional<CompressionSummary> compression;  // if the run compresses and fits
  std::optional<Execution> execution;             // if the backend executes and the run fits
  std::string allocator;             // the arena that served the run: for `auto`, the one it chose
  PolicyChoice policy = "liveness";  // the policy that ran: for `auto`, the candidate it chose
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_PREPARED_H_
