// What runs of one trace with one cost model share, so that trials need not find it out again.

#ifndef SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_
#define SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_

#include "sim/core/report.h"
#include "sim/runtime/op_facts.h"
#include "sim/runtime/parts.h"
#include "traces/liveness.h"

namespace spillway {

struct TraceFacts {
  // Throws as `OpTable`. The arguments outlive the facts.
  TraceFacts(const Trace& trace, const CostModel& cost)
      : liveness(trace), ops(trace, liveness, cost) {}

  const Liveness liveness;
  const OpTable ops;
};

// As `Run` of runtime.h. REQUIRES: they are of the parts' trace and cost model.
Report Run(const RuntimeParts& parts, const TraceFacts& facts, const RuntimeOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_TRACE_FACTS_H_
