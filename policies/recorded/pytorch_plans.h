// PyTorch's own answers to too little memory, as lists for `ApplySavedTensors`.

#ifndef SPILLWAY_POLICIES_RECORDED_PYTORCH_PLANS_H_
#define SPILLWAY_POLICIES_RECORDED_PYTORCH_PLANS_H_

#include <cstddef>
#include <cstdint>

#include "policies/recorded/saved_tensors.h"
#include "traces/trace.h"

namespace spillway::policies {

// `torch.autograd.graph.save_on_cpu` around forward: each operator copies each tensor that it saves
// to the host, parameters included. Unless the trace has `Trace::saved`, a tensor of forward that
// an op of backward reads counts as saved.
SavedTensorsPlan SaveOnCpu(const Trace& trace);

enum class Recomputed : uint8_t {
  kAllOps,
  // All but matrix products, convolutions and attention, whose outputs are kept until the block is
  // back: `create_selective_checkpoint_contexts` with a list of these operators.
  kCheapOps,
};

// `torch.utils.checkpoint` around each of the first `count` blocks that forward enters
// (`BlocksInOrder`). The tensors that are made within a block are recomputed when backward
// reaches the block. Tensors that are read outside of the block are kept.
SavedTensorsPlan CheckpointBlocks(const Trace& trace, size_t count,
                                  Recomputed recomputed = Recomputed::kAllOps);

// Returns true iff `Recomputed::kCheapOps` leaves the op out.
bool IsCostly(const Op& op);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_PYTORCH_PLANS_H_
