// A recorded step as `spillway_torch.fit` plans it: with the hooks of autograd, at which the
// program can move what autograd saved, and with weights that come from the host.
//
// The package makes such a step from one that it has recorded with the values of its tensors
// (backend/torch/spillway_torch/plan/planned_step.py). The host's times of hooks, moves and copies
// are those that it measured beside an H200.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_PLANNED_STEP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_PLANNED_STEP_H_

#include <span>
#include <vector>

#include "sim/core/device.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the step with hooks. The program can move storages of at least 1 MiB that autograd saved.
// It lets go of them behind their last use in forward, but autocast keeps its copies of trained
// parameters until the end of forward. Of several storages that one op makes, only the one that
// autograd saved last can be recomputed. If the trace does not say what autograd saved, it is what
// ops of backward read. REQUIRES: the trace has a recording, and no hooks.
Trace WithHooks(const Trace& trace);

// Returns the step with one more input for ops at which the program still holds a tensor
// (`Tensor::held_until`): the tensor. Whoever recomputes an op does without it, so that the ones
// that can be recomputed get none.
Trace WithHolds(Trace trace);

// The parameters that can be on the host: none if the program has ops on another lane.
struct HostableWeights {
  std::vector<TensorId> frozen;
  std::vector<TensorId> trained;  // by updates in parts, whose state can be on the host, too
};
HostableWeights WeightsIn(const Trace& trace);

// Returns those of the parameters that leave if about `size` of their bytes do, frozen ones first,
// and of these and of trained ones some at equal distances in the order of their first uses. Those
// that are used again soon, for the last time, leave after the others, and those that are larger
// than what comes ahead leave last.
std::vector<TensorId> LeavingWeights(const Trace& trace, const HostableWeights& weights,
                                     Bytes size);

// Returns the step with these parameters on the host. An op on a lane of its own copies each of
// them to the device, in the order of their uses, up to 256 MiB ahead, and one on another lane
// takes it back behind its last use if an update has written it. Whatever is recomputed from a
// frozen one copies it again. These copies reach 0.95 of the link's bandwidth, and do not slow
// others down. Where trained ones are on the host, state is, too, and in backward they have half of
// that. REQUIRES: the trace has hooks, and its ops have recorded times.
Trace WithWeightsOnHost(const Trace& trace, const Device& device,
                        std::span<const TensorId> weights);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_PLANNED_STEP_H_
