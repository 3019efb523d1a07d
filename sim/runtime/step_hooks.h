// The effects of a recorded program's hooks on a run, for each op.
//
// The program refers to a tensor that autograd saves until its last use in forward, and backward
// refers to it from the hook that reads it until the last op that uses it then. Meanwhile the
// storage cannot leave the device. The host is busy in each hook. A trace without `Trace::hooks`
// has no such effects.

#ifndef SPILLWAY_SIM_RUNTIME_STEP_HOOKS_H_
#define SPILLWAY_SIM_RUNTIME_STEP_HOOKS_H_

#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::sim {

class StepHookTable {
 public:
  // The trace outlives the table.
  StepHookTable(const Trace& trace, const Liveness& liveness);

  // The trace's hooks; nullptr if it has none, and then the other functions must not be called.
  const StepHooks* hooks() const { return hooks_; }
  // Returns the host's time in the hooks right before the op.
  Duration HostTime(OpId op) const { return host_[Index(op)]; }
  // Returns the storages to which backward begins to refer before the op.
  std::span<const TensorId> TakenBefore(OpId op) const { return taken_[Index(op)]; }
  // Returns the storages to which nobody refers any more after the op.
  std::span<const TensorId> GivenUpAfter(OpId op) const { return given_up_[Index(op)]; }
  // Returns the op before which the first hook runs after the storage's last use in forward: until
  // then, nothing can wait for a copy of it.
  OpId FreeFrom(TensorId storage) const { return free_from_[Index(storage)]; }
  // Returns the storages to which the program refers when the iteration begins, or as soon as it
  // makes them.
  std::span<const TensorId> HeldAtFirst() const { return held_; }

 private:
  const StepHooks* hooks_;
  std::vector<Duration> host_;
  std::vector<std::vector<TensorId>> taken_, given_up_;
  std::vector<OpId> free_from_;  // by tensor
  std::vector<TensorId> held_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_STEP_HOOKS_H_
