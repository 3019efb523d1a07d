// A time that no run of a trace in the given device memory can beat, whatever its policy decides.
//
// The bound looks at the moment when some op starts. A storage that an earlier op has written and a
// later op reads is then in one of three states. It is on the device; or it was copied out in this
// iteration and has yet to be copied in; or it was dropped and has yet to be recomputed. A
// recomputation runs all ops again that had written the storage, and all ops that had written their
// inputs if nothing keeps these inputs. A linear program gives the shortest iteration over the
// share of each storage in each state, the start of the op and the op's kernels. The bound is the
// largest such time over a few ops at which much is alive. All other ops run the fastest kernels
// for which their operands leave room, copies are never slowed down, and blocks leave no holes.
//
// The bound holds for runs of the trace as it is in which parameters and optimizer state stay on
// the device, no op is divided into micro-batches, and the only pool outside is the host's,
// uncompressed.

#ifndef SPILLWAY_POLICIES_PLAN_BOUND_H_
#define SPILLWAY_POLICIES_PLAN_BOUND_H_

#include "sim/core/cost_model.h"
#include "sim/core/report.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::policies {

// Returns the bound on the time of an iteration in `memory`. Without Clp, it is the time of the
// fastest kernels that fit, back to back. The result has no meaning if nothing fits in `memory`.
Duration JointBound(const Trace& trace, const CostModel& cost, Bytes memory);

// Returns true if the report is of a run for which the bound of the trace holds.
bool JointBoundHolds(const Trace& trace, Bytes alignment, const Report& report);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_BOUND_H_
