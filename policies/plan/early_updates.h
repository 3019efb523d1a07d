// Parameters updated as soon as nothing reads them any more, instead of after the backward pass:
// their gradients leave the device then, and the largest feature maps of a network are needed last.

#ifndef SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_
#define SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_

#include "traces/trace.h"

namespace spillway {

// The trace with each update behind the last op of another phase that names one of its storages.
// Ops of the same place keep their order.
Trace WithEarlyUpdates(const Trace& trace);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_
