// A launch of a slot of an op, and the ways to execute one.

#ifndef SPILLWAY_BACKEND_CUDA_SLOT_LAUNCH_H_
#define SPILLWAY_BACKEND_CUDA_SLOT_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "traces/base/units.h"
#include "traces/ops/data_type.h"

namespace spillway::cuda {

// The types of the elements of an op's operands, in the order of op.inputs and op.outputs. Operands
// that a list lacks are float32.
struct OperandTypes {
  std::vector<DataType> inputs, outputs;
};

// One way to execute a slot.
struct Candidate {
  std::string algorithm;  // "default" if the library offers no choice
  Bytes workspace;
  bool deterministic = true;  // gives the same bits on every run
};

// A launch of the samples [first, first + batch) of one slot. The ranges cover the operands of the
// whole op, in the order of op.inputs and op.outputs; the kernel layer adds the offset of `first`.
// The parts of a slot are launched in order from first = 0. The first part overwrites parameter
// gradients and the loss, and later parts add to them.
struct SlotLaunch {
  size_t slot = 0;
  std::string_view algorithm = "default";
  int64_t first = 0;
  int64_t batch = 0;
  std::span<const DeviceRange> inputs;
  std::span<const DeviceRange> outputs;
  DeviceRange workspace;  // at least `Candidate::workspace`
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_SLOT_LAUNCH_H_
