// Packing by taking a part out and placing it again: the search for problems in which memory is
// full all the time.
//
// Large neighbourhood search (Shaw 1998). It begins with the best of some sweeps over time
// (`packing_sweep.h`), in which what finds no place below the height stays homeless. Then it takes
// out what lies around the lifetime of a homeless block, mostly within a band of offsets, and
// sweeps over that and the homeless again. The outcome stays if what is homeless weighs no more
// than before, or at times a little more; else all is as it was.
//
// How far that leads depends on the beginning. So many beginnings race: the better half goes on,
// again and again, until one is left (successive halving, Jamieson and Talwalkar 2016). Rules of
// sweeps that were good beginnings are varied. Everything is drawn at random, from fixed seeds.
// Races run on all cores, and the outcome does not depend on how many there are.

#ifndef SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
#define SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sim/packing/halves.h"
#include "sim/packing/problem.h"

namespace spillway::packing {

class NeighbourhoodSearch {
 public:
  // `problem` outlives this; `bound` is its bound. Takes the comparisons made off `steps`, as `Run`
  // does.
  NeighbourhoodSearch(const Problem& problem, int64_t bound, int64_t& steps);

  // A packing that is no higher than `height`, or the largest height there is when the steps run
  // out.
  Solution Run(int64_t height, int64_t& steps);

 private:
  // A split of the problem; its upper half in compressed time.
  struct Part {
    Halves halves;
    std::vector<double> weight;   // by large block, when it is homeless
    std::vector<int64_t> pivots;  // moments at which memory is almost full
  };
  class Arena;
  class Races;

  const Problem& problem_;
  std::vector<Part> parts_;
  std::mt19937 random_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_NEIGHBOURHOOD_H_
