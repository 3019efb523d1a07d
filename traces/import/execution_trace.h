// Reads the execution traces that PyTorch writes (`ExecutionTraceObserver`, Chakra's host trace).
//
// Each operator that ran, with the tensors that it was given and gave back, by storage. It knows no
// times. The writer is known to break its own JSON; nodes that cannot be read are left out and
// counted.

#ifndef SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_
#define SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "traces/base/text_stream.h"

namespace spillway {

struct ExecutionTrace {
  struct TensorRef {
    int64_t storage = 0;  // the same number may name another storage later
    int64_t offset = 0;   // in elements
    int64_t elements = 0;
    int64_t element_size = 0;  // in bytes
    bool on_gpu = false;
    int64_t device = 0;     // the GPU's number
    uint32_t argument = 0;  // its place in the operator's signature
    std::vector<int64_t> shape;

    int64_t begin() const { return offset * element_size; }
    int64_t end() const { return (offset + elements) * element_size; }
  };
  struct Node {
    int64_t id = 0;
    int64_t parent = 0;    // the node that called it
    int64_t record = 0;    // by which the profiler knows it; 0: it does not
    int64_t sequence = 0;  // of the autograd node that it made, or that it runs for; -1: none
    int64_t thread = 0;
    std::string name;
    std::string schema;  // "aten::add_(Tensor(a!) self, ...) -> Tensor(a!)"; may be empty
    std::vector<TensorRef> inputs, outputs;
  };

  std::vector<Node> nodes;  // by id, in which order they began
  int64_t broken = 0;       // that could not be read
};

// Throws `InputError` if this is no such file, or none of its nodes can be read.
ExecutionTrace ReadExecutionTrace(TextStream& stream);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_
