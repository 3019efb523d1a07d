// The runtime is the memory manager: it executes a trace under a policy, on any backend.
//
// It owns residency, liveness, the device arena, the pools outside, recomputation, hazards and the
// logs. The host program is sequential: a verb changes the state of the allocator when it is
// issued, and waits keep the device correct. So every placement depends only on the decisions and
// is equal on every backend. The runtime reads no clock; the backend supplies the times of the
// report at the end.

#ifndef SPILLWAY_SIM_RUNTIME_RUNTIME_H_
#define SPILLWAY_SIM_RUNTIME_RUNTIME_H_

#include "sim/core/report.h"
#include "sim/runtime/parts.h"

namespace spillway::sim {

// Runs the trace to its steady state. If the workload does not fit, the report has `out_of_memory`
// set. Throws `PolicyError` if the policy breaks its contract, and `InputError` if the cost model
// lacks an entry. An error of the backend gets the name of the op or copy before its message.
//
// The arena and the pools are empty again when `Run` returns or throws, and can serve another run.
// The backend can serve another run if this run was completed. Until it does, the final contents of
// the blocks that the placement log ends with stay where they are.
Report Run(const RuntimeParts& parts, const RuntimeOptions& options = {});

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_RUNTIME_H_
