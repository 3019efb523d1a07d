// Placing blocks in the order of time.
//
// If a policy keeps the arena full, a block's place is one that other blocks have just left. A
// large block fits only if blocks that end together lie together. So a sweep starts at a moment,
// the pivot, and first places the blocks that are live then. It then places the other blocks
// outwards from the pivot. Each block goes beside the block whose end is closest in time to its own
// end (towards the past: whose beginning is closest), and preferably where it fills a gap. Pivots,
// orders and weights are random: neighbourhood search (`neighbourhood.h`) makes many sweeps.

#ifndef SPILLWAY_SIM_PACKING_TIME_SWEEP_H_
#define SPILLWAY_SIM_PACKING_TIME_SWEEP_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sim/packing/problem.h"

namespace spillway::sim::packing {

// The random parameters of a sweep.
struct SweepRule {
  enum class Stack : uint8_t { kLongest, kOldest, kFirstToEnd, kYoungest };

  int64_t pivot = 0;              // the moment at which the sweep starts
  Stack stack = Stack::kLongest;  // which of the blocks live at the pivot lies lowest
  double farthest = 0;            // larger differences of time count as this one
  double origin = 0;              // the weight of the difference of the other ends
  double noise = 0;               // the random part of a choice
};

// Draws the parameters of a sweep. REQUIRES: `pivots` is not empty.
SweepRule DrawRule(const std::vector<int64_t>& pivots, std::mt19937& random);

// The blocks in the order in which they are placed.
struct SweepOrder {
  Order stack;  // blocks that are live at the pivot, the lowest first
  Order later;
  Order earlier;  // against the order of time
};
SweepOrder OrderOf(const Problem& problem, const SweepRule& rule, std::span<const uint32_t> blocks);

// A block to be placed. It is live in [begin, end).
struct Block {
  int64_t begin, end, size;
};

// A block that has been placed.
struct Placed {
  int64_t offset, top, begin, end;
  uint32_t block;
};

// Returns the offset of the gap below `height` whose neighbours fit `block` best by the rule; -1 if
// no gap is large enough. `met` are the placed blocks that are live at its time, by offset. If
// `forward`, blocks are placed in the order of time, and blocks that end together belong together;
// otherwise blocks that begin together do.
int64_t BestGap(std::span<const Placed* const> met, int64_t height, const Block& block,
                bool forward, const SweepRule& rule, std::mt19937& random);

}  // namespace spillway::sim::packing

#endif  // SPILLWAY_SIM_PACKING_TIME_SWEEP_H_
