// Workspace division (u-cuDNN, section III-C): each kernel gets a segment of one workspace, and a
// division of its batch that fits in the segment. The segments together stay within a limit, and
// the kernels take the least time.

#ifndef SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_
#define SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "policies/kernels/micro_batch.h"
#include "traces/base/units.h"

namespace spillway::policies {

// The index of the chosen division in the front of each kernel. nullopt if not even the smallest
// workspaces fit in the limit.
using SegmentChoice = std::optional<std::vector<size_t>>;

// Returns a choice of the least time within `total`. A dynamic program over the kernels keeps the
// desirable sums. It drops a sum if the linear relaxation of the remaining kernels cannot bring it
// below the time of a known solution.
SegmentChoice DivideExactly(std::span<const Front> fronts, Bytes total);

// Returns a choice of the least time within `total`, by CBC: equations 1 to 4 are an integer linear
// program, in which equal kernels are counted together. Calls `DivideExactly` if CBC is not linked,
// finds nothing, or exceeds the total by a rounding.
SegmentChoice DivideByIlp(std::span<const Front> fronts, Bytes total);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_
