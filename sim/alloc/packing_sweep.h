// Packing by sweeping over time: the search for problems in which memory is full all the time.
//
// Where a policy keeps the arena full, a block's place is one that others have just left, and a
// large block fits only where blocks that end together lie together. So blocks are placed in the
// order of time, outwards from a moment at which memory is full, each beside the block whose life
// ends (towards the past: begins) most nearly when its own does, first where it fills a gap. What
// finds no place is pinned where it disturbs least, and the sweep is made again around it. Moments,
// orders and weights are drawn at random, from a fixed seed. Insertion and neighbourhood search
// sweep by the same rules.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_SWEEP_H_
#define SPILLWAY_SIM_ALLOC_PACKING_SWEEP_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sim/alloc/packing_problem.h"

namespace spillway::packing {

// How a sweep decides; drawn at random.
struct SweepRule {
  enum class Stack : uint8_t { kLongest, kOldest, kFirstToEnd, kYoungest };

  int64_t pivot = 0;              // the moment
  Stack stack = Stack::kLongest;  // what lies lowest of the blocks that are live then
  bool by_life = false;  // what comes first of blocks that begin together: else the largest
  double gap = 0;        // how much worse it is to leave a gap than to fill one
  double farthest = 0;   // differences of time beyond this are equal
  double origin = 0;     // the weight of the difference of the other ends
  double noise = 0;      // part of a choice that is chance
  uint32_t seed = 0;     // of that
};

// How hard it is to place a block, in parts of `unit`.
double WeightOf(const Problem& problem, uint32_t block, double unit);

// Moments at which memory is almost full. REQUIRES: `problem` is compressed.
std::vector<int64_t> FullMoments(const Problem& problem, int64_t bound);

// REQUIRES: `pivots` is not empty.
SweepRule DrawRule(const std::vector<int64_t>& pivots, std::mt19937& random);

// Blocks in the order in which they are placed.
struct SweepOrder {
  std::vector<uint32_t> stack;  // those that are live at the pivot, the lowest first
  std::vector<uint32_t> later;
  std::vector<uint32_t> earlier;  // against the order of time
};
SweepOrder OrderOf(const Problem& problem, const SweepRule& rule, std::span<const uint32_t> blocks);

// A block that has a place. A sweep against the order of time counts it backwards.
struct Placed {
  int64_t offset, top, begin, end;
  uint32_t block;
};

// The offset of the gap between `lowest` and `height` whose neighbours suit a block best that is
// live in [begin, end), by the rule; -1 if none is large enough. `placed` is by offset and holds
// only what ends after `begin`; what begins at `end` or later is not in the way.
int64_t BestGap(const std::vector<Placed>& placed, int64_t lowest, int64_t height, int64_t size,
                int64_t begin, int64_t end, const SweepRule& rule, std::mt19937& random);

class SweepSearch {
 public:
  // `bound` is that of the problem.
  SweepSearch(const Problem& problem, int64_t bound);

  // A packing that is no higher than `height`, or whatever is worse if the comparisons made, which
  // are taken off `steps`, were more than these.
  Solution Run(int64_t height, int64_t& steps);

 private:
  struct Pin {
    uint32_t block;
    int64_t offset;
  };
  struct Attempt {
    SweepRule rule;
    std::vector<int64_t> offset;     // by block
    std::vector<uint32_t> homeless;  // blocks without a place
    double missing = 0;              // the sum of their weights
  };

  Attempt Sweep(const SweepRule& rule, const std::vector<Pin>& pins, int64_t height,
                int64_t& steps);
  // Places blocks, which are in the order of time, among those placed. `times` says the lifetimes.
  void Place(const Problem& times, const std::vector<uint32_t>& order, std::vector<Placed> placed,
             int64_t height, std::mt19937& random, Attempt& attempt, int64_t& steps) const;
  // From an attempt on, pins what found no place until all do or no pins help.
  Attempt Repair(const Attempt& start, int64_t height, int64_t& steps);
  Pin ChoosePin(const Attempt& attempt, const std::vector<Pin>& pins, int64_t height,
                int64_t& steps);
  double Weight(uint32_t block) const { return WeightOf(problem_, block, weight_unit_); }
  double Uniform() { return static_cast<double>(random_()) / 4294967296.0; }  // in [0, 1)

  const Problem problem_;  // compressed
  Problem backward_;       // the same with time reversed
  const std::vector<int64_t> pivots_;
  double weight_unit_;
  std::mt19937 random_;
};

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_SWEEP_H_
