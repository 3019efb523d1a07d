// How small may the pool be? The search of vDNN++ (section IV-B), and the true minimum.
//
// Both replay the requests of one iteration on a fresh allocator, pool size after pool size. The
// paper's search grows the pool by what the failing request lacked, and may jump over smaller pools
// that would do: a request sequence may be served by 9 units and not by 11. The minimum skips only
// sizes under which no decision of the allocator can differ.

#ifndef SPILLWAY_EXPERIMENTS_LIMIT_SMALLEST_POOL_H_
#define SPILLWAY_EXPERIMENTS_LIMIT_SMALLEST_POOL_H_

#include <functional>
#include <optional>
#include <string>

#include "experiments/run/simulate.h"
#include "sim/packing/allocation_log.h"

namespace spillway {

// A pool size, and at how many sizes the requests were replayed to find it.
struct PoolSize {
  Bytes size;
  int trials = 0;
};

// The paper's search from `start`, the aggregate: the largest sum of live bytes, each rounded
// (`AllocationLog::Peak`). nullopt if no larger pool would do either: high-end as its authors wrote
// it fails at any size where a high hint meets a small hole near the top. `allocator` is a
// specification; `alignment` the device's. Throws `UsageError` as `MakeAllocator`, and for an
// allocator that is not best-fit, first-fit or high-end: only for one arena, in which comparisons
// of sizes and addresses decide, is the pool well defined.
std::optional<PoolSize> SearchPool(const AllocationLog& log, const std::string& allocator,
                                   Bytes alignment, Bytes start);

// The smallest pool of all that serves the requests; nullopt if there is none. Throws as above.
std::optional<PoolSize> LeastPool(const AllocationLog& log, const std::string& allocator,
                                  Bytes alignment);

// What a policy requests in an iteration with unlimited memory. `counted` says which blocks lie in
// the pool; nullptr for all.
AllocationLog RequestsOf(const Setup& setup, Policy& policy,
                         const std::function<bool(const Placement&)>& counted = nullptr);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_LIMIT_SMALLEST_POOL_H_
