// Offline placement: offsets for blocks whose sizes and lifetimes are known in advance, in as
// little memory as can be found.
//
// The problem (dynamic storage allocation) is NP-hard. A packing is the best result of several
// heuristics, of an exact search (`exact.h`), and of packing parts again while the rest stays
// (`neighbourhood.h`). The searches are limited by steps, not by a clock, so the same intervals
// give the same offsets. Blocks that overlap all others in time lie at the bottom. Stretches of
// time that no remaining block connects are packed separately. Neither rule raises a packing.

#ifndef SPILLWAY_SIM_PACKING_PACKING_H_
#define SPILLWAY_SIM_PACKING_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "traces/base/units.h"

namespace spillway::sim {

// A block that is live in the half-open range [begin, end) of steps.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  Bytes size;
};

struct Packing {
  std::vector<Bytes> offsets;  // by interval
  Bytes height;                // end of the highest block
  Bytes bound;                 // largest sum of live sizes; no packing is lower
};

struct PackingOptions {
  Bytes granularity = Bytes(512);  // sizes are rounded up to a multiple of the granularity
  // The search stops at a packing that is at most this many thousandths above the bound, or after a
  // 64th of the steps twice as many, and no higher than `memory` or the bound, whichever is larger.
  // If the memory is limited, whatever fits is enough after a quarter of the steps. Which packings
  // it finds until then does not depend on `memory`: with more memory it stops at the same packing
  // or at an earlier one, so a packing that fits is never lost.
  int64_t tolerance = 5;
  Bytes memory = Bytes::Unlimited();
  // The effort: the approximate number of comparisons of two blocks, or of a block with a section
  // of time. Each stretch of time gets the share of its blocks. With 0 steps, only the heuristics
  // run.
  int64_t steps = 64'000'000'000;
};

// Returns the lowest of the packings that the searches find and of `placements`, packings of the
// same intervals that somebody else has found; each has an offset for every interval. REQUIRES:
// begin < end and size >= 0 in each interval, granularity > 0, and the offsets of `placements` are
// multiples of it.
Packing Pack(std::span<const LiveInterval> intervals, const PackingOptions& options = {},
             const std::vector<std::vector<Bytes>>& placements = {});

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_PACKING_PACKING_H_
