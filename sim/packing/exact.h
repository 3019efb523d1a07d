// An exact search for a packing below a height.

#ifndef SPILLWAY_SIM_PACKING_EXACT_H_
#define SPILLWAY_SIM_PACKING_EXACT_H_

#include <cstdint>

#include "sim/packing/problem.h"

namespace spillway::packing {

// Depth first over packings in which blocks are placed in ascending order of offset, each on top of
// all that it meets: every packing can be pushed down into one of these. A branch ends where some
// section of time can no longer keep below the height wanted, or where another block would have
// fitted under the one placed.
//
// Returns the first packing found that is lower than `height`, of the largest height there is if
// there is none, or `steps`, from which the comparisons made are taken, have run out.
Solution SearchExactly(const Problem& problem, int64_t height, int64_t& steps);

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_EXACT_H_
