// Packing by guided ejection: blocks throw each other out until all have a place.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_
#define SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_

#include <cstdint>
#include <vector>

#include "sim/alloc/packing_halves.h"
#include "sim/alloc/packing_problem.h"

namespace spillway::packing {

// Guided ejection, from the beginning each time, of the large blocks of several splits by turns.
class Ejection {
 public:
  // `problem` outlives this. Takes the comparisons made off `steps`, as `Run` does.
  Ejection(const Problem& problem, int64_t bound, int64_t& steps);

  // A packing that is no higher than `height`, or whatever is worse when the steps run out.
  Solution Run(int64_t height, int64_t& steps);

 private:
  const Problem& problem_;
  std::vector<Halves> splits_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_
