// The search of vDNN++ (section IV-B) for the memory that requests need: from a size up by what the
// request that fails lacked, until all are served. It may jump over smaller sizes that would do: a
// sequence of requests may be served by 9 units and not by 11.

#ifndef SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_
#define SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_

#include <functional>
#include <optional>
#include <string>

#include "sim/packing/allocation_log.h"
#include "traces/base/units.h"

namespace spillway {

// `lacking` tries a size: 0 bytes if it does, else what the request that failed lacked, more than
// 0; nullopt if no size does, and then so is the result.
std::optional<Bytes> SearchPool(Bytes start,
                                const std::function<std::optional<Bytes>(Bytes size)>& lacking);

// For the requests of a log on the allocator of that specification, one that decides by comparing
// sizes and addresses in one arena. nullopt if no larger pool does either: high-end as its authors
// wrote it fails at any size where a high hint meets a small hole near the top.
std::optional<Bytes> SearchPool(const AllocationLog& log, const std::string& allocator,
                                Bytes alignment, Bytes start);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_POOL_SEARCH_H_
