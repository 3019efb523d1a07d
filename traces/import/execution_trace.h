// Reads the execution traces that PyTorch writes (`ExecutionTraceObserver`, Chakra's host trace).
//
// An execution trace lists each operator that ran with its input and output tensors, by storage. It
// has no times. Nodes may be those of schema 1.0.1, which have fields such as `rf_id`, or those of
// later schemas, which have `attrs`. PyTorch's writer is known to produce broken JSON; nodes that
// cannot be read are skipped and counted.

#ifndef SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_
#define SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "traces/base/text_stream.h"
#include "traces/ops/data_type.h"

namespace spillway::traces {

struct ExecutionTrace {
  struct TensorRef {
    int64_t storage = 0;  // a later storage may have the same number
    int64_t offset = 0;   // in elements
    int64_t elements = 0;
    int64_t element_size = 0;  // in bytes
    bool on_gpu = false;
    int64_t device = 0;     // the GPU's number
    uint32_t argument = 0;  // index in the operator's signature
    std::vector<int64_t> shape;
    // The elements' type; float32 if the file does not say or names one that traces do not know.
    DataType dtype = DataType::kFloat32;

    int64_t begin() const { return offset * element_size; }
    int64_t end() const { return (offset + elements) * element_size; }
  };
  struct Node {
    int64_t id = 0;
    int64_t parent = 0;    // id of the node that called it
    int64_t record = 0;    // id of the node in the profiler's trace; 0: none
    int64_t sequence = 0;  // the autograd node that it made or runs for; -1: none
    int64_t thread = 0;
    std::string name;
    std::string schema;  // "aten::add_(Tensor(a!) self, ...) -> Tensor(a!)"; may be empty
    std::vector<TensorRef> inputs, outputs;
  };

  std::vector<Node> nodes;  // by id, which is the order in which they began
  int64_t broken = 0;       // number of nodes that could not be read
};

// Throws `InputError` if the stream is not an execution trace or none of its nodes can be read.
ExecutionTrace ReadExecutionTrace(TextStream& stream);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_EXECUTION_TRACE_H_
