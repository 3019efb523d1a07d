// Sets of storages that are never alive at the same time, and so can share a block.

#ifndef SPILLWAY_POLICIES_LIFETIMES_H_
#define SPILLWAY_POLICIES_LIFETIMES_H_

#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Colours the lifetimes so that no two of one colour overlap, with the fewest colours: each
// interval, in order of its start, takes the first colour that is free. REQUIRES: roots that are
// used.
std::vector<std::vector<TensorId>> ColourLifetimes(const std::vector<TensorId>& storages,
                                                   const Liveness& liveness);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_LIFETIMES_H_
