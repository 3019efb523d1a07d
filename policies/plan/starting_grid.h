// The grid of plans with which the search of the joint planner begins. Along one axis, more and
// more of the storages that can be recomputed are evicted, the cheapest per byte first. Along the
// other, more and more of the rest are offloaded, as far as the link can copy them in time.

#ifndef SPILLWAY_POLICIES_PLAN_STARTING_GRID_H_
#define SPILLWAY_POLICIES_PLAN_STARTING_GRID_H_

#include <span>
#include <vector>

#include "policies/plan/trials.h"

namespace spillway::policies {

// Returns the best point of the grid, and also the best one in less memory if that is faster. The
// points are `keep`, a plan that keeps all storages, with other fates for some of the `choices`,
// which are offloaded in the order given. Returns an empty vector if none fits, and `keep` alone if
// it takes no longer than `in_core`.
std::vector<Scored> TryGrid(Trials& trials, std::span<const TensorId> choices,
                            const JointPlan& keep, Duration in_core);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_STARTING_GRID_H_
