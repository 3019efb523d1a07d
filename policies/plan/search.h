// The search of the joint planner, with the simulator in its loop. It tries a grid over how much is
// evicted and how much is offloaded, then sweeps over single decisions and walks at random, as long
// as there are trials left.

#ifndef SPILLWAY_POLICIES_PLAN_SEARCH_H_
#define SPILLWAY_POLICIES_PLAN_SEARCH_H_

#include <memory>
#include <optional>

#include "policies/plan/trials.h"

namespace spillway::policies {

// Returns the best plan found that fits in the memory, or nullopt if none does. The search ends
// early when it has a plan that takes no longer than `in_core`. The result does not depend on the
// number of cores.
std::optional<JointPlan> SearchPlan(std::shared_ptr<const JointFacts> facts, const TrialRun& trial,
                                    Bytes memory, Duration in_core, const SearchOptions& options);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_SEARCH_H_
