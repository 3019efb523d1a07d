// Trials of plans in the search of the joint planner. A trial plans the prefetches by the memory
// that each op is expected to need, and runs the plan in the simulator. The search compares plans
// by the times of their trials, of which it has a limited number.

#ifndef SPILLWAY_POLICIES_PLAN_TRIALS_H_
#define SPILLWAY_POLICIES_PLAN_TRIALS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"

namespace spillway::policies {

struct SearchOptions {
  int64_t trials = 1000;
  Duration enough = {};  // the search ends with the first plan that takes at most this time
  bool offload = true;
  bool recompute = true;
  bool kernels = true;  // the sweeps also change kernels
  KernelChooser chooser = {};
  uint64_t seed = 1;
  // Trials of plans whose kernels alone take too long, and trials without `JointPlan::drops` that
  // are the same with it, are not run. They count as trials, so that the search finds the same
  // plan.
  bool skip = true;
  int iterations = 1;      // each trial runs so many; the last one is measured
  double slower_link = 1;  // if less than 1, plans are also tried with this share of the link
  std::shared_ptr<const Trace> reordered = nullptr;  // as in `TrialOptions`
  std::vector<TensorId> outside = {};  // these parameters and states live outside in all plans
};

struct Judged {
  Report report;  // the report of the run with the whole link
  Duration time;  // the time by which runs are compared
};

// Calls `run` to make a trial, and another one with the slower link if the search has one. The time
// is the iteration's, or the mean of both iterations. Returns nullopt if a trial does not fit.
std::optional<Judged> Judge(const SearchOptions& search, TrialOptions options,
                            const std::function<Report(const TrialOptions&)>& run);

// By op: the most bytes that are needed on the device while the op is prepared and issued. Storages
// that could be released for it do not count.
using Profile = std::vector<Bytes>;

// Returns the profile of a run that keeps everything but what lives outside, and that runs the
// fastest kernels.
Profile ProfileInCore(const JointFacts& facts, const JointPlan& plan);

// The number of plans that are tried at the same time. It is not the number of cores, because the
// result must not depend on that.
inline constexpr size_t kBatch = 4;
inline constexpr Duration kForever = Duration::Max();  // the time of a plan that does not fit

// A plan and the result of its trial.
struct Scored {
  JointPlan plan;
  Duration time = kForever;  // kForever if it does not fit, or was not tried
  Profile profile = {};      // by which it, and the plans derived from it, are scheduled
  Profile own = {};          // the profile of its trial
  bool by_own = false;       // after the trial, `own` replaces `profile`
  bool dropped = true;       // false: its trial is the same without `JointPlan::drops`
  double fragmentation = 0;
};

// Changes the profile in `to` from the profile of plan `from` to the profile of the plan in `to`.
void AdjustProfile(const JointFacts& facts, const JointPlan& from, Scored& to);

// Returns the trial of the plan with `drops` that is the same without, or nullptr.
const Scored* FindWithDrops(std::span<const Scored> trials, const JointPlan& plan);

// Makes the trials of a search and counts them.
class Trials {
 public:
  // REQUIRES: `run` outlives the trials.
  Trials(std::shared_ptr<const JointFacts> facts, const TrialRun& run, const SearchOptions& search);

  const JointFacts& facts() const { return *facts_; }
  const SearchOptions& options() const { return options_; }
  // Returns how many trials are left. It is less than 0 if the last batch had too many.
  int64_t left() const { return left_; }
  // Returns how many trials the plans take.
  int64_t Of(size_t plans) const {
    return static_cast<int64_t>(plans) * (options_.slower_link < 1 ? 2 : 1);
  }

  // Schedules the plans by their profiles and runs them. Plans that cannot take less than `limit`
  // are not run, nor are plans whose trials are known, but all plans count as trials.
  void Score(std::span<Scored> plans, Duration limit = kForever);
  // Ends the use of known trials, which stand for equal trials without `drops` until then.
  void Forget() { known_.reset(); }

 private:
  Duration LeastTimeOf(const JointPlan& plan) const;
  void MakeTrial(Scored& scored) const;

  const std::shared_ptr<const JointFacts> facts_;
  const TrialRun& run_;
  const SearchOptions options_;
  int64_t left_;
  std::vector<Duration> least_times_;                        // by op
  std::optional<std::vector<Scored>> known_{std::in_place};  // with `drops`, but dropped nothing
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_TRIALS_H_
