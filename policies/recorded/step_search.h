// The search for plans of a recorded step, in the moves that its program has.
//
// It climbs a ladder of budgets, which does not depend on the budget that is asked for. On each
// rung it begins with the plan of the rung below, which fits there, too. So more memory never
// has a slower plan, or none. On a rung, a guess from the sizes and the times of ops decides which
// storages leave; trial runs decide between guesses, and correct what they say of the memory and of
// the copies that ops wait for.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_SEARCH_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_SEARCH_H_

#include <vector>

#include "policies/recorded/step_plan.h"
#include "sim/core/cost_model.h"
#include "sim/core/policy.h"

namespace spillway::policies {

struct StepRung {
  Bytes memory;
  bool fits = false;
  StepPlan plan;  // the fastest plan in at most `memory`, or the one found with the least peak
  Bytes peak;     // of the plan
  Duration time;
};

struct StepSearchOptions {
  Bytes floor;            // the least memory of any plan
  Bytes eager_peak;       // the memory of the step without a plan
  Bytes memory;           // no rung above this budget is climbed
  int64_t trials = 1000;  // on the whole ladder
};

// Returns the rungs in at most `memory`, the lowest first; the first one is the floor. The result
// does not depend on the number of cores. REQUIRES: `memory` is not less than the floor.
std::vector<StepRung> SearchSteps(const Trace& trace, const CostModel& cost,
                                  const StepPlaces& places, const TrialRun& trial,
                                  const StepSearchOptions& options);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_SEARCH_H_
