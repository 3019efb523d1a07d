// Optimal rematerialisation (Jain et al., MLSys 2020, section 4): which values of a program are
// kept from unit to unit, and which are recomputed, so that the program takes the least time
// within a memory budget. The problem is stated without a trace; `checkmate` derives it from one.
//
// Units run in their order, and stage t ends with the first run of unit t. Earlier in the stage,
// the units run again whose values are needed and absent, in their order. A value leaves with its
// last use in the stage unless the next stage keeps it. Nothing runs again before the first unit
// that cannot run again, because backward begins there. Until then a value stays while units before
// that point use it, and longer if the schedule keeps it.

#ifndef SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_
#define SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "traces/base/units.h"

namespace spillway::policies {

struct RematerializedUnit {
  Duration time;
  bool again = false;  // can run again; only such values are decided on
  Bytes value;         // the bytes that later units read
  Bytes extra;         // needed while it runs again, in addition to the values it reads and writes
  Bytes fixed;  // on the device while it runs for the first time, whatever the schedule keeps
  std::vector<size_t> reads;  // the earlier units whose values it reads, ascending

  bool operator==(const RematerializedUnit&) const = default;
};

using RematerializationProblem = std::vector<RematerializedUnit>;

// A schedule: kept[t][i] says that the value of unit i < t is there when stage t begins. It has one
// more stage than there are units.
using Retention = std::vector<std::vector<bool>>;

struct RematerializationCost {
  Duration time;  // the sum over all runs
  Bytes peak;
};

// Returns the cost of a schedule. If a stage keeps a value that was neither kept nor made before,
// the value's unit runs again. Returns nullopt if a unit would have to run again before the first
// unit that cannot.
std::optional<RematerializationCost> CostOf(const RematerializationProblem& problem,
                                            const Retention& kept);

// Returns the fastest schedule found within the budget, or nullopt if none was found. It is the
// best of two kinds: solutions of the integer program, whose search visits at most `nodes` nodes,
// and roundings of its linear relaxation, which keep a value from some threshold on. With 0 nodes,
// only roundings are tried. Without CBC and Clp nothing is found.
std::optional<Retention> Rematerialize(const RematerializationProblem& problem, Bytes budget,
                                       int64_t nodes);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_REMATERIALIZATION_H_
