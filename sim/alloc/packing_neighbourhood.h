// Packing by taking a part out and placing it again: the search for problems in which memory is
// full all the time.
//
// Large neighbourhood search (Shaw 1998). It begins with the best of some sweeps over time, in
// which what finds no place below the height stays homeless. Then it takes out what lies around the
// lifetime of a homeless block, mostly within a band of offsets, and places that and the homeless
// by another sweep (`packing_sweep.h`). The outcome stays if what is homeless weighs no more than
// before, or at times a little more; else all is as it was. Where that leads nowhere for a while it
// begins anew. Everything is drawn at random, from a fixed seed.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_NEIGHBOURHOOD_H_
#define SPILLWAY_SIM_ALLOC_PACKING_NEIGHBOURHOOD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "sim/alloc/packing_halves.h"
#include "sim/alloc/packing_problem.h"

namespace spillway::packing {

class NeighbourhoodSearch {
 public:
  // `problem` outlives this; `bound` is its bound. Takes the comparisons made off `steps`, as `Run`
  // does.
  NeighbourhoodSearch(const Problem& problem, int64_t bound, int64_t& steps);

  // A packing that is no higher than `height`, or whatever is worse when the steps run out. Begins
  // in turn from nothing and from what there is: first `start`, a packing of any height, then what
  // came nearest.
  Solution Run(const Solution& start, int64_t height, int64_t& steps);

 private:
  // A split of the problem; its upper half in compressed time.
  struct Part {
    Halves halves;
    std::vector<double> weight;   // by large block, when it is homeless
    std::vector<int64_t> pivots;  // moments at which memory is almost full
  };
  class Arena;

  const Problem& problem_;
  std::vector<Part> parts_;
  std::mt19937 random_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_NEIGHBOURHOOD_H_
