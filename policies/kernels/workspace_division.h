// Workspace division (u-cuDNN, section III-C): which division of its batch each kernel gets, so
// that all segments of one workspace together keep to a limit and the kernels take the least time.

#ifndef SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_
#define SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "policies/kernels/micro_batch.h"
#include "traces/base/units.h"

namespace spillway {

// By kernel, which division of its front. nullopt if not even the least workspaces fit in `total`.
using SegmentChoice = std::optional<std::vector<size_t>>;

// Of least time, exactly: a dynamic program over the kernels that keeps the desirable sums, without
// those that the linear relaxation of what follows cannot bring below a known solution.
SegmentChoice DivideExactly(std::span<const Front> fronts, Bytes total);

// By CBC: equations 1 to 4 as an integer linear program, where kernels alike are counted together.
// Exactly where CBC is not linked, or its solution exceeds the total by a rounding.
SegmentChoice DivideByIlp(std::span<const Front> fronts, Bytes total);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_KERNELS_WORKSPACE_DIVISION_H_
