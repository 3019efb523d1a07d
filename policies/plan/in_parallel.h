// Independent pieces of work on all cores, for the search and the other policies beside it.

#ifndef SPILLWAY_POLICIES_PLAN_IN_PARALLEL_H_
#define SPILLWAY_POLICIES_PLAN_IN_PARALLEL_H_

#include <cstddef>
#include <functional>

namespace spillway {

// Calls `work(i)` for all i < count on as many threads as there are cores. Throws what the first of
// them, by i, has thrown, after all have ended.
void InParallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_IN_PARALLEL_H_
