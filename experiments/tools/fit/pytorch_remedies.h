// The changes that a user of PyTorch can make to a program that needs too much memory, each with
// the policy that predicts it and the Python code that makes it.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "experiments/tools/fit/other_batch.h"

namespace spillway {

struct PyTorchRemedy {
  std::string change;  // "checkpoint", "save_on_cpu", "allocator" or "batch"
  std::string text;    // "checkpoint 5 of 12 blocks"
  std::string policy;  // a specification; empty: the policy that runs the workload unchanged
  // One line of Python. `model` is the user's module, and `checkpoint` is
  // torch.utils.checkpoint.checkpoint.
  std::string python;
};

// Returns the remedy of checkpoints around the first `count` of `blocks`, which are all blocks in
// the order of forward. REQUIRES: 0 < count <= blocks.size().
PyTorchRemedy Checkpoint(std::span<const std::string> blocks, size_t count);
PyTorchRemedy SaveTensorsOnCpu();
PyTorchRemedy ExpandableSegments();
// `source` says how the trace of the batch was made.
PyTorchRemedy SmallerBatch(int64_t batch, BatchSource source);

// Returns a Python expression for a sequence of the modules called `blocks`: "model.h[:5]" for
// "h.0" to "h.4" if `all`, the names of all blocks of the model, has more of them.
std::string ModulesOf(std::span<const std::string> blocks, std::span<const std::string> all);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_
