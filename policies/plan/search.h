// The search of the joint planner, with the simulator in its loop: a grid over how much is evicted
// and how much is offloaded, then sweeps over single decisions, as many as there are trials for.

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
  bool offload = true;
  bool recompute = true;
  bool kernels = true;  // sweeps over kernels, too
  KernelChooser chooser = {};
  uint64_t seed = 1;
  // Trials of plans whose kernels alone take too long are not run; they count, so that the plan
  // that is found is the same.
  bool skip = true;
  int iterations = 1;      // of each trial, the last of which counts
  double slower_link = 1;  // less than 1: plans have to be good with this share of the link, too
  std::shared_ptr<const Trace> reordered = nullptr;  // as in `TrialOptions`
};

struct Judged {
  Report report;  // of the run with the link as it is
  Duration time;  // by which runs are compared
};

// The time is that of the iteration or, with a slower link, the mean of it and of that there. `run`
// makes a trial. nullopt: it does not fit.
std::optional<Judged> Judge(const SearchOptions& search, TrialOptions options,
                            const std::function<Report(const TrialOptions&)>& run);

// The best plan found that fits in the memory; nullopt if none does. `in_core`: nothing faster
// is looked for. The same for any number of cores.
std::optional<JointPlan> SearchPlan(std::shared_ptr<const JointFacts> facts, const TrialRun& trial,
                                    Bytes memory, Duration in_core, const SearchOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_SEARCH_H_
