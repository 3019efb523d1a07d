// Placing blocks in the order of time.
//
// Where a policy keeps the arena full, a block's place is one that others have just left, and a
// large block fits only where blocks that end together lie together. So blocks are placed outwards
// from a moment, those that are live then first, each beside the block whose life ends (towards the
// past: begins) most nearly when its own does, first where it fills a gap. Moments, orders and
// weights are drawn at random: neighbourhood search (`neighbourhood.h`) makes many sweeps.

#ifndef SPILLWAY_SIM_PACKING_TIME_SWEEP_H_
#define SPILLWAY_SIM_PACKING_TIME_SWEEP_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sim/packing/problem.h"

namespace spillway::packing {

// How a sweep decides; drawn at random.
struct SweepRule {
  enum class Stack : uint8_t { kLongest, kOldest, kFirstToEnd, kYoungest };

  int64_t pivot = 0;              // the moment
  Stack stack = Stack::kLongest;  // what lies lowest of the blocks that are live then
  double farthest = 0;            // differences of time beyond this are equal
  double origin = 0;              // the weight of the difference of the other ends
  double noise = 0;               // part of a choice that is chance
};

// REQUIRES: `pivots` is not empty.
SweepRule DrawRule(const std::vector<int64_t>& pivots, std::mt19937& random);

// Blocks in the order in which they are placed.
struct SweepOrder {
  Order stack;  // those that are live at the pivot, the lowest first
  Order later;
  Order earlier;  // against the order of time
};
SweepOrder OrderOf(const Problem& problem, const SweepRule& rule, std::span<const uint32_t> blocks);

// A block to be placed; live in [begin, end).
struct Block {
  int64_t begin, end, size;
};

// A block that has a place.
struct Placed {
  int64_t offset, top, begin, end;
  uint32_t block;
};

// The offset of the gap below `height` whose neighbours suit a block best, by the
// rule; -1 if none is large enough. `met`: what it meets, by offset. `forward`: in the order of
// time, in which what ends together belongs together; else what begins together does.
int64_t BestGap(std::span<const Placed* const> met, int64_t height, const Block& block,
                bool forward, const SweepRule& rule, std::mt19937& random);

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_TIME_SWEEP_H_
