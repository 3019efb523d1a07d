// Packing by sweeps that make room: the search for problems in which memory is full all the time.
//
// As in `packing_sweep.h` blocks are placed outwards from a full moment, each beside what ends when
// it does. A block that finds no place throws out what weighs least, which looks for a place in its
// turn (`packing_ejection.h`), while what comes later in the sweep is not there yet and in nobody's
// way. Only where that does not settle soon the block is left out. At the end the best attempts
// take in all that was left out by ejection once more. Rules of attempts that left out little are
// varied, others drawn anew, from a fixed seed.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_INSERTION_H_
#define SPILLWAY_SIM_ALLOC_PACKING_INSERTION_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "sim/alloc/packing_halves.h"
#include "sim/alloc/packing_problem.h"
#include "sim/alloc/packing_sweep.h"

namespace spillway::packing {

class InsertionSearch {
 public:
  // `problem` outlives this. Takes the comparisons made off `steps`, as `Run` does.
  InsertionSearch(const Problem& problem, int64_t bound, int64_t& steps);

  // A packing that is no higher than `height`, or whatever is worse when the steps run out.
  Solution Run(int64_t height, int64_t& steps);

 private:
  struct Attempt {
    SweepRule rule;
    double missing = 0;  // the weight of what was left out
  };
  // A split of the problem; its upper half in compressed time.
  struct Part {
    Halves halves;
    std::vector<std::vector<uint32_t>> met;  // by large block: those that it meets
    std::vector<int64_t> first_weight;       // by large block, for ejection
    std::vector<double> missing;             // by large block: its weight when it is left out
    std::vector<int64_t> pivots;
    std::vector<Attempt> best;  // attempts, the best first
  };
  class Arena;

  void Add(Halves halves);
  SweepRule Next(const Part& part);

  const Problem& problem_;
  std::vector<Part> parts_;
  std::mt19937 random_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_INSERTION_H_
