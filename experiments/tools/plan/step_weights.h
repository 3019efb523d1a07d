// A plan of a recorded step that may have some of its weights on the host.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_WEIGHTS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_WEIGHTS_H_

#include <memory>

#include "experiments/run/case.h"
#include "experiments/tools/plan/step_curve.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::lab {

struct StepWithWeights {
  std::unique_ptr<const StepPlanner> planner;  // of the step with some of the weights on the host
  PlannedStep planned;
  bool trained = false;  // trained ones are there, and all state
  Bytes outside{};       // of all weights there
};

// Plans the step within `memory` bytes, as `StepPlanner::In` does, with no more weights on the host
// than it takes to have a plan, or with half or all of the other frozen ones there, too, whichever
// is fastest. If there is no plan, the result is that of all of them on the host. `all_state` is
// that of `StepPlanner`. REQUIRES: the trace has hooks, and its ops have recorded times.
StepWithWeights PlanWithWeights(const Case& asked, const Trace& trace, Bytes memory,
                                bool all_state);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_WEIGHTS_H_
