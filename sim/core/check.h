// An independent, slow, obvious verifier of a report: it re-derives from the logs alone that no
// byte was read too early, overwritten too soon or owned twice.
//
// It shares no code with the runtime. Order is proven twice: by the waits (every pair of
// conflicting accesses must be connected by stream order and waits, whatever the times were) and by
// the times.

#ifndef SPILLWAY_SIM_CORE_CHECK_H_
#define SPILLWAY_SIM_CORE_CHECK_H_

#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// The violations found, one sentence each, empty if the report is sound; at most `limit` of them.
// Checked: live blocks do not overlap, on the device and in the pools; every op finds its
// operands on the device, holding the contents that the trace says it reads; a copy outside is
// complete before it is read back; conflicting accesses to overlapping bytes are ordered by waits
// and in time; commands of one stream do not overlap in time.
std::vector<std::string> Check(const Trace& trace, const Report& report, size_t limit = 10);

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_CHECK_H_
