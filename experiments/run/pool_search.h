// Searches for the pool size that a sequence of requests needs, as vDNN++ does (section IV-B).
//
// The search adds the bytes that the failed request lacked until all requests are served. It may
// skip smaller sizes that would do, because a pool of 9 units can serve requests that a pool of 11
// units cannot.

#ifndef SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_
#define SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_

#include <functional>
#include <optional>
#include <string>

#include "sim/packing/allocation_log.h"
#include "traces/base/units.h"

namespace spillway::lab {

// Returns the first size from `start` on that serves all requests. `lacking` tries a size. It
// returns 0 bytes if the size is enough, otherwise the positive number of bytes that the failed
// request lacked. It returns nullopt if no size is enough; then the result is nullopt too.
std::optional<Bytes> SearchPool(Bytes start,
                                const std::function<std::optional<Bytes>(Bytes size)>& lacking);

// Searches for the pool size that the requests of a log need with `allocator`, the specification of
// an allocator that decides by comparing sizes and addresses in one arena. Returns nullopt if no
// pool size is enough. high-end as its authors wrote it can fail at any size, when a high hint
// meets a small hole near the top.
std::optional<Bytes> SearchPool(const AllocationLog& log, const std::string& allocator,
                                Bytes alignment, Bytes start);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_
