// Packing by guided ejection: blocks throw each other out until all have a place.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_
#define SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_

#include <cstdint>
#include <vector>

#include "sim/alloc/packing_problem.h"

namespace spillway::packing {

// A problem in two parts: small blocks, packed at the bottom, and large ones that lie above them.
// Small blocks are many, most of them outlive the large ones, and packed by themselves they leave
// no gaps that the large ones could not follow.
struct Halves {
  std::vector<uint32_t> small, large;  // the blocks in each
  Problem upper;                       // the large ones
  std::vector<int64_t> lower_offset;   // of the small ones
  std::vector<int64_t> floor;          // by large block: the top of the small ones that it meets
  int64_t bound = 0;                   // no packing above this lower half is lower
};

// Guided ejection, from the beginning each time, of the large blocks of several splits by turns.
class Ejection {
 public:
  // `problem` outlives this. Takes the comparisons made off `steps`, as `Run` does.
  Ejection(const Problem& problem, int64_t bound, int64_t& steps);

  // A packing that is no higher than `height`, or whatever is worse when the steps run out.
  Solution Run(int64_t height, int64_t& steps);

 private:
  Solution Join(const Halves& halves, const std::vector<int64_t>& upper) const;

  const Problem& problem_;
  std::vector<Halves> splits_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_EJECTION_H_
