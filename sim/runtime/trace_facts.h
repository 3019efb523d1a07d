// The facts that runs of one trace with one cost model share, so that trials need not recompute
// them.

#ifndef SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_
#define SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_

#include "sim/core/report.h"
#include "sim/runtime/op_facts.h"
#include "sim/runtime/parts.h"
#include "sim/runtime/step_hooks.h"
#include "traces/liveness.h"

namespace spillway::sim {

struct TraceFacts {
  // Throws like the constructor of `OpTable`. The arguments outlive the facts.
  TraceFacts(const Trace& trace, const CostModel& cost)
      : liveness(trace), ops(trace, liveness, cost), hooks(trace, liveness) {}

  const Liveness liveness;
  const OpTable ops;
  const StepHookTable hooks;
};

// Runs like `Run` in runtime.h. REQUIRES: `facts` were computed from the trace and the cost model
// of `parts`.
Report Run(const RuntimeParts& parts, const TraceFacts& facts, const RuntimeOptions& options);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_
