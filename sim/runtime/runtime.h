// The runtime is memory management: it executes a trace under a policy, on any backend.
//
// It owns residency, liveness, the device arena, the pools outside, recomputation, hazards and
// the logs. The host program is sequential: a verb changes allocator state when it is issued, and
// the device is kept correct by waits, so that every placement is a function of the decisions alone
// and equal on every backend. It reads no clock; times enter the report from the backend at the
// end.

#ifndef SPILLWAY_SIM_RUNTIME_RUNTIME_H_
#define SPILLWAY_SIM_RUNTIME_RUNTIME_H_

#include "sim/core/report.h"
#include "sim/runtime/parts.h"

namespace spillway {

// Runs the trace to its steady state. A workload that does not fit gives a report with
// `out_of_memory` set. Throws `PolicyError` if the policy breaks its contract and `InputError` if
// the cost model lacks an entry; an error of the backend gets the op, or the copy, before its
// message. However it ends, arena and host pool are as empty as before, and can serve another run.
// The backend can after a run that came to its end; the last contents of blocks that the placement
// log ends with stay where they are until it does.
Report Run(const RuntimeParts& parts, const RuntimeOptions& options = {});

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_RUNTIME_H_
