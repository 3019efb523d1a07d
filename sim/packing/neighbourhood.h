// Packing by taking a part out and placing it again: the search for problems in which memory is
// full all the time.
//
// Large neighbourhood search (Shaw 1998). It begins with the best of some sweeps over time
// (`sweep.h`), in which what finds no place below the height stays homeless. Then it takes
// out what lies around the lifetime of a homeless block, mostly within a band of offsets, and
// sweeps over that and the homeless again. The outcome stays if what is homeless weighs no more
// than before; else all is as it was.
//
// That is for large blocks alone. Small ones go into the gaps in the end: they are many, but for
// all of them a sliver of memory is enough.
//
// How far that leads depends on the beginning. So many beginnings race: the better half goes on,
// again and again, until one is left (successive halving, Jamieson and Talwalkar 2016). Everything
// is drawn at random, from fixed seeds. Races run on all cores, and the outcome does not depend on
// how many there are.

#ifndef SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
#define SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sim/packing/problem.h"

namespace spillway::packing {

class NeighbourhoodSearch {
 public:
  // `problem` outlives this; `bound` is its bound.
  NeighbourhoodSearch(const Problem& problem, int64_t bound);

  // A packing that is no higher than `height`, seldom a little higher, or of the largest height
  // there is when the steps run out or no block is large. Takes the comparisons made off `steps`.
  Solution Run(int64_t height, int64_t& steps);

 private:
  class Arena;
  class Races;

  const Problem& problem_;
  int64_t sliver_ = 0;  // of memory is kept for the small ones
  Order large_;         // the largest first
  Problem reduced_;     // these, in compressed time
  // By large block, when it is homeless: large ones are hard to place, long-lived ones in less than
  // proportion to their life.
  std::vector<double> weight_;
  std::vector<int64_t> pivots_;  // moments at which memory is almost full
  std::mt19937 random_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
