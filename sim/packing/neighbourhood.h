// Packing by taking a part out and placing it again: the search for problems in which memory is
// full all the time.
//
// This is large neighbourhood search (Shaw 1998). It begins with the best of several sweeps over
// time (`sweep.h`). A block without a place below the height is homeless. Each move takes out the
// blocks around the lifetime of a homeless block, mostly within a band of offsets, and places them
// and the homeless blocks in a new sweep. The result is kept if the homeless blocks weigh no more
// than before; otherwise the move is undone.
//
// The search places only large blocks. The many small blocks go into the gaps at the end; a sliver
// of memory is enough for all of the small blocks.
//
// The result depends on the beginning. Several beginnings race: the better half continues, again
// and again, until one is left (successive halving, Jamieson and Talwalkar 2016). All random
// numbers come from fixed seeds. Races run on all cores, and the result does not depend on the
// number of cores.

#ifndef SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
#define SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sim/packing/problem.h"

namespace spillway::sim::packing {

class NeighbourhoodSearch {
 public:
  // `bound` is the bound of `problem`. `problem` outlives the search.
  NeighbourhoodSearch(const Problem& problem, int64_t bound);

  // Returns a packing that is no higher than `height`, rarely a little higher. If the steps run out
  // or no block is large, returns a `Solution` with height INT64_MAX. Subtracts the comparisons
  // made from `steps`.
  Solution Run(int64_t height, int64_t& steps);

 private:
  class Arena;
  class Races;

  const Problem& problem_;
  int64_t sliver_ = 0;  // memory kept for the small blocks
  Order large_;         // the large blocks, the largest first
  Problem reduced_;     // the large blocks in compressed time
  // The weight of each large block while it is homeless. Large blocks are hard to place. Long-lived
  // blocks are too, but the weight grows more slowly than their lifetime.
  std::vector<double> weight_;
  std::vector<int64_t> pivots_;  // moments at which memory is almost full
  std::mt19937 random_;
};

}  // namespace spillway::sim::packing

#endif  // SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
