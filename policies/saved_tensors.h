// What a list says of each tensor that backward reads, done to a trace as PyTorch's autograd does
// it: kept, computed again, or copied to the host and back, all in the order of one stream.
//
// What comes back is a tensor of its own, as `torch.autograd.graph.save_on_cpu` and
// `torch.utils.checkpoint` make it. Copies and recomputation are ops of the trace, so that a copy
// takes its time between the ops around it: that is how PyTorch runs them.

#ifndef SPILLWAY_POLICIES_SAVED_TENSORS_H_
#define SPILLWAY_POLICIES_SAVED_TENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_model.h"
#include "traces/trace.h"

namespace spillway {

enum class SavedFate : uint8_t { kSave, kRecompute, kOffload };

struct SavedTensor {
  std::optional<SavedFate> fate;  // nullopt: kept if backward reads it, else of no interest
  std::string group;              // kRecompute: all of a group come back together; may be empty
};

struct SavedTensorsPlan {
  std::vector<SavedTensor> tensors;  // by id; of a view that is not listed, its storage's counts
  // kOffload: whether each op of backward that reads a tensor has a copy of its own, made where it
  // was saved and brought back before that op.
  bool each_reader = false;
};

// Reads such a list, experiments/schemas/saved-tensors.json. `origin` stands for its path in
// messages. Throws `InputError` with the place: malformed, of another workload, a tensor that the
// trace does not have.
SavedTensorsPlan ParseSavedTensors(std::string_view text, const std::string& origin,
                                   const Trace& trace);

// The trace with the plan carried out. Throws `InputError` if a tensor cannot be computed again.
Trace ApplySavedTensors(const Trace& trace, const SavedTensorsPlan& plan, const CostModel& cost);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_SAVED_TENSORS_H_
