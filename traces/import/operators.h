// What is known of PyTorch's operators by their names: which do the arithmetic of a network, and
// how much of it.

#ifndef SPILLWAY_TRACES_IMPORT_OPERATORS_H_
#define SPILLWAY_TRACES_IMPORT_OPERATORS_H_

#include <cstdint>

#include "traces/import/execution_trace.h"
#include "traces/ops/op_type.h"

namespace spillway {

// Of the operator that a node ran; `kOther` for those that move bytes more than they compute.
OpType TypeOf(const ExecutionTrace::Node& node);

// Its floating-point operations, a multiply-add being two, by the shapes of its operands; 0 for
// `kOther`.
int64_t FlopsOf(const ExecutionTrace::Node& node);

// Whether it takes memory and computes nothing ("aten::empty").
bool OnlyAllocates(const ExecutionTrace::Node& node);

// Whether its schema says that the tensor at a place among its inputs is written
// ("Tensor(a!) self"); `argument` as in `TensorRef`.
bool Writes(const ExecutionTrace::Node& node, uint32_t argument);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_OPERATORS_H_
