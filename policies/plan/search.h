// The search of the joint planner, with the simulator in its loop. It tries a grid over how much is
// evicted and how much is offloaded, then sweeps over single decisions and walks at random, as long
// as there are trials left.

#ifndef SPILLWAY_POLICIES_PLAN_SEARCH_H_
#define SPILLWAY_POLICIES_PLAN_SEARCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "policies/kernels/kernel_choice.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"

namespace spillway {

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
  int iterations = 1;      // of each trial; the last one is measured
  double slower_link = 1;  // if less than 1, plans are also tried with this share of the link
  std::shared_ptr<const Trace> reordered = nullptr;  // as in `TrialOptions`
};

struct Judged {
  Report report;  // of the run with the whole link
  Duration time;  // the time by which runs are compared
};

// Calls `run` to make a trial, and another one with the slower link if the search has one. The time
// is the iteration's, or the mean of both iterations. Returns nullopt if a trial does not fit.
std::optional<Judged> Judge(const SearchOptions& search, TrialOptions options,
                            const std::function<Report(const TrialOptions&)>& run);

// Returns the best plan found that fits in the memory, or nullopt if none does. The search ends
// early when it has a plan that takes no longer than `in_core`. The result does not depend on the
// number of cores.
std::optional<JointPlan> SearchPlan(std::shared_ptr<const JointFacts> facts, const TrialRun& trial,
                                    Bytes memory, Duration in_core, const SearchOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_SEARCH_H_
