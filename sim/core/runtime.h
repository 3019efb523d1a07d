// The runtime is memory management: it executes a trace under a policy, on any backend.
//
// It owns residency, liveness, the device arena, the pinned host pool, recomputation, hazards and
// the logs. The host program is sequential: a verb changes allocator state when it is issued, and
// the device is kept correct by waits, so that every placement is a function of the decisions alone
// and equal on every backend. It reads no clock; times enter the report from the backend at the
// end.

#ifndef SPILLWAY_SIM_CORE_RUNTIME_H_
#define SPILLWAY_SIM_CORE_RUNTIME_H_

#include <functional>
#include <memory>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// Predicts a run of `policy` on the same trace, device, memory and cost model: behind
// `PolicyContext::WhatIf`. Injected, so that the core does not depend on a simulator.
using Trial = std::function<Report(Policy& policy)>;

struct RuntimeOptions {
  // Iterations stop when two in a row agree in decisions, placements and times, or at this number.
  int max_iterations = 8;
  // If positive: exactly this many, steady or not.
  int iterations = 0;
  // Copy the inputs to the device in each iteration and charge for it; otherwise they arrive
  // before.
  bool charge_input = false;
};

// The parts of a run. All of them outlive the runtime and serve no other run meanwhile.
struct RuntimeParts {
  const Trace* trace = nullptr;    // validated
  const Device* device = nullptr;  // its memory is the budget of the run
  const CostModel* cost = nullptr;
  Allocator* arena = nullptr;
  Allocator* host_pool = nullptr;
  Backend* backend = nullptr;
  Policy* policy = nullptr;
  Trial trial;  // may be empty: then `WhatIf` throws `PolicyError`
};

// Runs the trace to its steady state. A workload that does not fit gives a report with
// `out_of_memory` set. Throws `PolicyError` if the policy breaks its contract and `InputError` if
// the cost model lacks an entry; an error of the backend gets the op, or the copy, before its
// message. However it ends, arena and host pool are as empty as before, and can serve another run.
// The backend can after a run that came to its end; the last contents of blocks that the placement
// log ends with stay where they are until it does.
Report Run(const RuntimeParts& parts, const RuntimeOptions& options = {});

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_RUNTIME_H_
