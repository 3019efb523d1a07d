// A list gives each tensor that backward reads a fate: it is kept, recomputed, or copied to the
// host and back. These functions apply such a list to a trace as PyTorch's autograd would, in the
// order of one stream.
//
// A tensor that comes back is a new tensor, as `torch.autograd.graph.save_on_cpu` and
// `torch.utils.checkpoint` make it. Copies and recomputation are ops of the trace, so that a copy
// takes its time between the ops around it. That is how PyTorch runs them.

#ifndef SPILLWAY_POLICIES_RECORDED_SAVED_TENSORS_H_
#define SPILLWAY_POLICIES_RECORDED_SAVED_TENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_model.h"
#include "traces/trace.h"

namespace spillway::policies {

enum class SavedFate : uint8_t { kSave, kRecompute, kOffload };

struct SavedTensor {
  std::optional<SavedFate> fate;  // nullopt: not listed; kept if backward reads it
  // Tensors of a group with kRecompute come back together. A tensor of a group with kSave is held
  // at least until then. May be empty.
  std::string group;
};

struct SavedTensorsPlan {
  std::vector<SavedTensor> tensors;  // by id; a view that is not listed has its storage's fate
  // For kOffload: each op of backward that reads a tensor has its own copy. The copy is made where
  // the tensor was saved, and brought back before that op.
  bool each_reader = false;
};

// Reads such a list (experiments/schemas/saved-tensors.json); `origin` is its path in messages.
// Throws `InputError` with the place of the error if the list is malformed, for another workload,
// or names a tensor that the trace does not have.
SavedTensorsPlan ParseSavedTensors(std::string_view text, const std::string& origin,
                                   const Trace& trace);

// Returns the trace with the plan applied. Throws `InputError` if a tensor cannot be computed
// again.
Trace ApplySavedTensors(const Trace& trace, const SavedTensorsPlan& plan, const CostModel& cost);

// Returns how many bytes the ops that `ApplySavedTensors` added to the trace copy in the direction.
// The logs of a run do not count them, because these copies are ops.
Bytes CopiedByOps(const Trace& trace, Direction direction);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_SAVED_TENSORS_H_
