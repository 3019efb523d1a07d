// A certificate: a time that no run of a trace in so much device memory can beat, whatever its
// policy decides.
//
// It looks at the moment in which some op starts. What ops before it have written and ops after it
// read is then on the device, or has been copied out since the iteration began and has yet to be
// copied in, or has been dropped and has yet to be rebuilt by all ops that had written it, and by
// those that had written what these read and nothing keeps. A linear program over how much of each
// storage is which, when the op starts, and which kernels run it gives the shortest iteration; the
// bound is the largest over a few ops at which much is alive. Kernels of other ops are the fastest
// that fit beside what the op names, copies are never slowed down, and blocks leave no holes.
//
// It assumes what holds of runs that take the trace as it is: parameters and optimizer state stay
// on the device, no op is divided into micro-batches, and the host's pool, uncompressed, is the
// only one outside.

#ifndef SPILLWAY_POLICIES_PLAN_BOUND_H_
#define SPILLWAY_POLICIES_PLAN_BOUND_H_

#include "sim/core/cost_model.h"
#include "sim/core/report.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

// Of an iteration in `memory`. Without Clp it is the time of those kernels back to back. Says
// nothing of memory in which nothing fits.
Duration JointBound(const Trace& trace, const CostModel& cost, Bytes memory);

// Whether the report is of a run of the trace that the bound holds of.
bool JointBoundHolds(const Trace& trace, Bytes alignment, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_BOUND_H_
