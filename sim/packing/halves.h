// A packing problem in two parts, one above the other.

#ifndef SPILLWAY_SIM_PACKING_HALVES_H_
#define SPILLWAY_SIM_PACKING_HALVES_H_

#include <cstdint>
#include <vector>

#include "sim/packing/problem.h"

namespace spillway::packing {

// Small blocks, packed at the bottom, and large ones that lie above them. Small blocks are many,
// most of them outlive the large ones, and packed by themselves they leave no gaps that the large
// ones could not follow.
struct Halves {
  std::vector<uint32_t> small, large;  // the blocks in each
  Problem upper;                       // the large ones
  std::vector<int64_t> lower_offset;   // of the small ones
  std::vector<int64_t> floor;          // by large block: the top of the small ones that it meets
  int64_t bound = 0;                   // no packing above this lower half is lower
};

// Blocks smaller than `size` are small. Takes the comparisons made off `steps`.
Halves Split(const Problem& problem, int64_t size, int64_t& steps);

// False when no packing above the lower half can end at `height`.
bool Fits(const Halves& halves, int64_t height);

// The whole, with these offsets of the large blocks.
Solution Join(const Problem& problem, const Halves& halves, const std::vector<int64_t>& upper);

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_HALVES_H_
