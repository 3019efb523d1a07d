// The changes that a user of PyTorch can make to a program that needs too much memory, each with
// the policy that predicts it and the Python code that makes it.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "experiments/changes/other_batch.h"
#include "sim/core/device.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::lab {

struct PyTorchRemedy {
  // "checkpoint", "selective checkpoint", "save_on_cpu", "allocator", "batch", "micro-batches",
  // "construction", "combination", "bf16", "autocast", "8-bit optimizer", "offloaded optimizer",
  // "loss chunks", "more GPUs", "more shards", "reshard", "bf16 reduction", "compile", "compile
  // within the budget" or "spillway"
  std::string change;
  std::string text;    // "checkpoint 5 of 12 blocks"
  std::string policy;  // a specification; empty: the policy that runs the workload unchanged
  // Statements of Python, one a line. `model` is the user's module, and `forward` returns the loss
  // of a batch. `body` is the module without its head, `head`, which makes logits of the rows that
  // `body` returns with their labels. `checkpoint` and `create_selective_checkpoint_contexts` are
  // those of torch.utils.checkpoint.
  std::string python;
};

// Returns the remedy of checkpoints around the first `count` of `blocks`, which are all blocks in
// the order of forward. REQUIRES: 0 < count <= blocks.size().
PyTorchRemedy Checkpoint(std::span<const std::string> blocks, size_t count);
// Returns the remedy of checkpoints around all `blocks` that keep the results of matrix products,
// convolutions and attention. `trace` tells which operators these are.
PyTorchRemedy SelectiveCheckpoint(std::span<const std::string> blocks, const Trace& trace);
PyTorchRemedy SaveTensorsOnCpu();
PyTorchRemedy ExpandableSegments();
// `source` says how the trace of the batch was made.
PyTorchRemedy SmallerBatch(int64_t batch, BatchSource source);
// REQUIRES: `batch` is a multiple of `count`.
PyTorchRemedy MicroBatches(int64_t batch, int64_t count);
// `mesh` has the sizes of its dimensions, the outermost first, among `times` as many GPUs.
PyTorchRemedy MoreGpus(std::span<const int64_t> mesh, int64_t times, const Device& device);
// `mesh` is the mesh in which `times` as many processes share parameters out.
PyTorchRemedy MoreShards(std::span<const int64_t> mesh, int64_t times);
// `reshard_after_forward=True` in all modules but the root.
PyTorchRemedy ReshardAfterForward();
PyTorchRemedy ReduceInBfloat16();
PyTorchRemedy Bfloat16();
PyTorchRemedy AutocastToBfloat16();
PyTorchRemedy BuildElsewhere();
PyTorchRemedy EightBitOptimizer();
// `rate` is what the host reads and writes in a second.
PyTorchRemedy OffloadedOptimizer(Bandwidth rate);
// What of a step can be on the host with `spillway_torch.fit`, beside activations.
struct HostedTensors {
  bool state = false;     // of the optimizer
  bool weights = false;   // frozen ones
  bool trained = false;   // trained weights, too
  bool from_cpu = false;  // all of the model is too large for the device, and begins on the CPU
};
// `spillway_torch.fit` with a budget. `early` and `chunks` say if parameters are updated in
// backward, and if the loss is in chunks.
PyTorchRemedy BySpillway(Bytes budget, HostedTensors host, bool early, bool chunks);
// torch.compile, with PyTorch's own cut of the graphs, and with one that `spillway_torch.compile`
// makes for a budget. Both are with expandable segments: what graphs allocate is not known one by
// one.
PyTorchRemedy Compile();
PyTorchRemedy CompileWithin(Bytes budget);
// `chunks` is the number of parts of the tokens.
PyTorchRemedy LossInChunks(int64_t chunks);

// Returns a Python expression for a sequence of the modules called `blocks`: "model.h[:5]" for
// "h.0" to "h.4" if `all`, the names of all blocks of the model, has more of them.
std::string ModulesOf(std::span<const std::string> blocks, std::span<const std::string> all);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_PYTORCH_REMEDIES_H_
