// An exact search for a packing below a height.

#ifndef SPILLWAY_SIM_PACKING_EXACT_H_
#define SPILLWAY_SIM_PACKING_EXACT_H_

#include <cstddef>
#include <cstdint>

#include "sim/packing/problem.h"

namespace spillway::sim::packing {

// The most blocks of a search; the recursion is as deep as their number.
inline constexpr size_t kLargestExact = 5000;

// The rules of the search. Each can be switched off to measure its effect.
struct ExactParams {
  bool fewest = true;  // first the corner with little to lose and few ways, else the lowest
  bool even = true;    // first blocks as high as the valley's wall or as long as its floor
  bool right = true;   // look at right corners of valleys, not only at left ones
  bool repair = true;  // rebuild parts of the best attempt between new beginnings
};

// Searches depth first over packings that are built from below, each block on top of another or on
// the ground. A valley is a stretch of sections of time that are lower than the sections on both
// sides. At its left (right) corner, either a block starts (ends) at the floor, or the corner's
// section loses height. A section can lose the height of the packing less the sum of its blocks. If
// memory is full all the time, no section can lose height, and few blocks fit a corner. No order of
// the blocks suits all problems, so attempts are limited and repeated with other orders.
//
// Returns a packing lower than `height`, or a `Solution` with height INT64_MAX if none was found.
// If steps remain in that case, none exists. Subtracts the comparisons made from `steps`.
// REQUIRES: sizes are larger than 0; at most `kLargestExact` blocks.
Solution SearchExactly(const Problem& problem, int64_t height, int64_t& steps,
                       const ExactParams& params = {});

}  // namespace spillway::sim::packing

#endif  // SPILLWAY_SIM_PACKING_EXACT_H_
