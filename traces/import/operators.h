// Facts about PyTorch's operators by their names: their types and their numbers of floating-point
// operations.

#ifndef SPILLWAY_TRACES_IMPORT_OPERATORS_H_
#define SPILLWAY_TRACES_IMPORT_OPERATORS_H_

#include <cstdint>

#include "traces/import/execution_trace.h"
#include "traces/ops/op_type.h"

namespace spillway::traces {

// Returns the type of the operator that a node ran. Returns `kOther` for operators that mostly move
// bytes.
OpType TypeOf(const ExecutionTrace::Node& node);

// Returns the operator's floating-point operations by the shapes of its operands, with a
// multiply-add counted as two. Returns 0 for `kOther`.
int64_t FlopsOf(const ExecutionTrace::Node& node);

// Returns true iff the operator allocates memory and computes nothing ("aten::empty").
bool OnlyAllocates(const ExecutionTrace::Node& node);

// Returns true iff the operator's schema says that it writes the tensor at this index of its inputs
// ("Tensor(a!) self"). `argument` is a `TensorRef::argument`.
bool Writes(const ExecutionTrace::Node& node, uint32_t argument);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_OPERATORS_H_
