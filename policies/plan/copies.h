// Ops and storages that are copies of one another, because the layers of a network repeat.
//
// Two ops are alike if they have the same type, phase, batch, library calls and sizes of operands,
// and if both or neither can run again. They are copies if the four ops before them and the four
// after them are alike, too, one by one. Two storages are copies if they have the same kind and
// size, if copies use them in the same order, and if the first of these ops use them as the same
// operand. Times do not matter, since equal ops of a recorded program take different times.

#ifndef SPILLWAY_POLICIES_PLAN_COPIES_H_
#define SPILLWAY_POLICIES_PLAN_COPIES_H_

#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

struct Copies {
  // True iff at least four fifths of the storages have seven or more copies. If not, each storage
  // and each op stands alone below.
  bool layers_repeat = false;
  // Groups of copies, in the order of their first members. Each group has the order of execution,
  // or that in which the storages were given.
  std::vector<std::vector<OpId>> ops;
  std::vector<std::vector<TensorId>> storages;
};

// Returns the copies among all ops and among these storages. REQUIRES: each storage is used.
Copies FindCopies(const Trace& trace, const Liveness& liveness, std::span<const TensorId> storages);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_COPIES_H_
