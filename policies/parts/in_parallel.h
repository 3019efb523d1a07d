// A loop whose iterations are independent, on all cores.

#ifndef SPILLWAY_POLICIES_PARTS_IN_PARALLEL_H_
#define SPILLWAY_POLICIES_PARTS_IN_PARALLEL_H_

#include <cstddef>
#include <functional>

namespace spillway::policies {

// Calls `work(i)` for all i < count, on as many threads as there are cores. If calls throw, all
// calls still end; then the exception of the smallest i is thrown.
void InParallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_IN_PARALLEL_H_
