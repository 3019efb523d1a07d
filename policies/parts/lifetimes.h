// Sets of storages that are never alive at the same time, and so can share a block.

#ifndef SPILLWAY_POLICIES_PARTS_LIFETIMES_H_
#define SPILLWAY_POLICIES_PARTS_LIFETIMES_H_

#include <vector>

#include "sim/core/policy.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

// Returns the storages by colour, such that no two lifetimes of one colour overlap and the colours
// are as few as possible: each interval, in the order of their starts, takes the first colour that
// is free. REQUIRES: the storages are roots that are used.
std::vector<std::vector<TensorId>> ColourLifetimes(const std::vector<TensorId>& storages,
                                                   const Liveness& liveness);

// Reserves a block for the whole run for each used storage that is not a gradient, a block for each
// colour of the gradients, and the workspace that `policy` needs. With `one_size`, each block for
// gradients is as large as the largest gradient.
void ReserveUpFront(PolicyContext& context, Policy& policy, bool one_size);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_LIFETIMES_H_
