// Offline placement: offsets for blocks whose sizes and lifetimes are known in advance, in as
// little memory as can be found.
//
// The problem (dynamic storage allocation) is NP-hard. A packing is the best of several heuristics,
// of an exact search (`exact.h`), and of packing a part again while the rest stays
// (`neighbourhood.h`), limited by the steps that they take; there is no clock,
// so the same intervals give the same offsets. Blocks that meet all others lie at the bottom, and
// stretches of time that no other block connects are packed apart: neither costs anything.

#ifndef SPILLWAY_SIM_PACKING_PACKING_H_
#define SPILLWAY_SIM_PACKING_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "traces/base/units.h"

namespace spillway {

// A block that is live in the half-open range [begin, end) of steps.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  Bytes size;
};

struct Packing {
  std::vector<Bytes> offsets;  // by interval
  Bytes height;                // the end of the highest block
  Bytes bound;                 // the largest sum of live sizes: no packing is lower
};

struct PackingOptions {
  Bytes granularity = Bytes(512);  // sizes are rounded up to a multiple of it
  // How far above the bound is good enough, in thousandths of it, if that is within the memory.
  int64_t tolerance = 5;
  Bytes memory = Bytes::Unlimited();
  // The effort: about so many comparisons of two blocks or of a block with a section of time. Where
  // the heuristics miss one percent, most is for packing parts again, to come within one percent or
  // nearer to it; where not the least slack is allowed, a quarter is for the exact search. With 0
  // the heuristics are on their own.
  int64_t steps = 64'000'000'000;
};

// REQUIRES: begin < end and size >= 0 in each interval, granularity > 0.
Packing Pack(std::span<const LiveInterval> intervals, const PackingOptions& options = {});

}  // namespace spillway

#endif  // SPILLWAY_SIM_PACKING_PACKING_H_
