// An independent, slow and simple verifier of a report. From the logs alone it proves that no byte
// was read too early, overwritten too soon or owned twice.
//
// It shares no code with the runtime. Order is proven twice: by the waits and by the times. The
// waits prove it if stream order and waits connect every pair of conflicting accesses, whatever the
// times were.

#ifndef SPILLWAY_SIM_CORE_CHECK_H_
#define SPILLWAY_SIM_CORE_CHECK_H_

#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::sim {

// Returns the violations found, one sentence each and at most `limit`; empty if the report is sound
// or does not fit. It checks:
// - Live blocks do not overlap, on the device and in the pools.
// - Every op finds its operands on the device, with the contents that the trace says it reads.
// - A copy outside is complete before it is read back.
// - Conflicting accesses to overlapping bytes are ordered by waits and in time.
// - Commands of one stream do not overlap in time.
std::vector<std::string> Check(const Trace& trace, const Report& report, size_t limit = 10);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_CHECK_H_
