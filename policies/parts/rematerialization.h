// Optimal rematerialisation (Jain et al., MLSys 2020, section 4) as a problem of its own: which
// values of a program are kept from unit to unit, and which are computed again, so that it takes
// the least time in so much memory. It knows no trace; `checkmate` makes it of one.
//
// Units run in their order; stage t ends with the first run of unit t. Before that, units whose
// values it needs and that are not there run again, in their order, and a value leaves with its
// last use in the stage unless the next one keeps it. Nothing runs again before the first unit that
// cannot, which is where backward begins: up to there a value stays while units up to there use it,
// and longer if the schedule says so.

#ifndef SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_
#define SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "traces/base/units.h"

namespace spillway {

struct RematerializedUnit {
  Duration time;
  bool again = false;         // can run again; only of those the value is decided on
  Bytes value;                // that later units read
  Bytes extra;                // while it runs again, besides what it reads and its value
  Bytes fixed;                // on the device whatever is decided, while it runs for the first time
  std::vector<size_t> reads;  // units before it, ascending
};

using RematerializationProblem = std::vector<RematerializedUnit>;

// kept[t][i]: the value of unit i < t is there when stage t begins; by stage, one more than there
// are units.
using Retention = std::vector<std::vector<bool>>;

struct RematerializationCost {
  Duration time;  // of all runs
  Bytes peak;
};

// Of a schedule, which may not keep what was neither kept nor made before: that runs again. Nullopt
// if a value is wanted of a unit that cannot.
std::optional<RematerializationCost> CostOf(const RematerializationProblem& problem,
                                            const Retention& kept);

// The fastest schedule within the budget: by an integer program, as long as its search takes no
// more than so many nodes; and by the rounding of its linear relaxation, whose values are kept from
// a threshold on, which is all that is done for 0 nodes. The best that was found; nullopt if
// nothing was, as always without CBC and Clp.
std::optional<Retention> Rematerialize(const RematerializationProblem& problem, Bytes budget,
                                       int64_t nodes);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_
