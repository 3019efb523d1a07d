// Sets of storages that are never alive at the same time, and so can share a block.

#ifndef SPILLWAY_POLICIES_PARTS_LIFETIMES_H_
#define SPILLWAY_POLICIES_PARTS_LIFETIMES_H_

#include <vector>

#include "sim/core/policy.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Colours the lifetimes so that no two of one colour overlap, with the fewest colours: each
// interval, in order of its start, takes the first colour that is free. REQUIRES: roots that are
// used.
std::vector<std::vector<TensorId>> ColourLifetimes(const std::vector<TensorId>& storages,
                                                   const Liveness& liveness);

// Reserves a block for the whole run for each storage that is used and no gradient, and one for
// each colour of the gradients; with `one_size` each of those is as large as the largest gradient.
void ReserveWithSharedGradients(PolicyContext& context, bool one_size);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_LIFETIMES_H_
