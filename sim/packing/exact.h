// An exact search for a packing below a height.

#ifndef SPILLWAY_SIM_PACKING_EXACT_H_
#define SPILLWAY_SIM_PACKING_EXACT_H_

#include <cstdint>

#include "sim/packing/problem.h"

namespace spillway::packing {

// What the search concludes and how it chooses; each can be switched off to see what it is worth.
struct ExactParams {
  bool fewest = true;  // the corner with little to lose and few ways to go on comes first, else the
                       // lowest
  bool even = true;    // first come blocks as high as the valley's wall or as long as its floor
  bool right = true;   // right corners of valleys are looked at, not only left ones
  bool repair = true;  // between new beginnings, parts of the best attempt are built again
};

// Depth first over packings that are built from below, each block on top of another or on the
// ground. A valley is a stretch of sections of time that lie lower than those beside it: at its
// left (or right) corner either a block starts (ends) at the floor, or that section loses some of
// what it can lose, which is the height less the sum of its blocks. Where memory is full all the
// time nothing can be lost, and few blocks suit a corner. No order of the blocks suits all
// problems: attempts are limited, and repeated with others.
//
// Returns a packing that is lower than `height`; of the largest height there is, if none was found.
// None exists if `steps`, from which the comparisons made are taken, have not run out then. For
// more than 5,000 blocks they have. REQUIRES: sizes are larger than 0.
Solution SearchExactly(const Problem& problem, int64_t height, int64_t& steps,
                       const ExactParams& params = {});

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_EXACT_H_
