// The operands of one launch of a slot, found by their roles.

#ifndef SPILLWAY_BACKEND_CUDA_SLOT_OPERANDS_H_
#define SPILLWAY_BACKEND_CUDA_SLOT_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/cuda/elements.h"
#include "backend/cuda/sequence_kernels.h"
#include "backend/cuda/slot_launch.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {

// Returns true iff the elements are bfloat16. Throws `InputError` that names the op if they are
// neither that nor float32.
bool IsBf16(const Op& op, DataType type);

// Sizes are checked when an operand is used: an operand that is missing or too small throws an
// `InputError` that names the op.
class Operands {
 public:
  Operands(const Op& op, const SlotLaunch& launch) : op_(op), launch_(launch) {}

  // Return an operand of `elements` elements per sample, at the launch's first sample. `part` has
  // the meaning that it has for `InputIndex`.
  ConstElements Read(Role role, int64_t elements, size_t part = 0) const {
    return ReadShared(role, (launch_.first + launch_.batch) * elements, part) +
           launch_.first * elements;
  }
  Elements Write(Role role, int64_t elements, size_t part = 0) const {
    return WriteShared(role, (launch_.first + launch_.batch) * elements, part) +
           launch_.first * elements;
  }
  // Return an operand without a batch dimension.
  ConstElements ReadShared(Role role, int64_t elements, size_t part = 0) const {
    return Take(launch_.inputs, InputIndex(op_, role, part), "input", elements);
  }
  Elements WriteShared(Role role, int64_t elements, size_t part = 0) const {
    return Take(launch_.outputs, OutputIndex(op_, role, part), "output", elements);
  }

  // Return the same operands, which must be float32.
  const float* Input(Role role, int64_t elements, size_t part = 0) const {
    return Floats(Read(role, elements, part));
  }
  float* Output(Role role, int64_t elements, size_t part = 0) const {
    return Floats(Write(role, elements, part));
  }
  const float* SharedInput(Role role, int64_t elements, size_t part = 0) const {
    return Floats(ReadShared(role, elements, part));
  }
  float* SharedOutput(Role role, int64_t elements, size_t part = 0) const {
    return Floats(WriteShared(role, elements, part));
  }
  // Returns labels or tokens at the launch's first sample, of which each sample has `elements`.
  const int32_t* Integers(Role role, int64_t elements) const;

 private:
  Elements Take(std::span<const DeviceRange> ranges, std::optional<size_t> i, std::string_view what,
                int64_t elements) const;
  float* Floats(ConstElements elements) const;

  const Op& op_;
  const SlotLaunch& launch_;
};

// Returns the elements of each parameter of an update. Throws `InputError` if they are together not
// as many as the op says.
std::vector<int64_t> ParameterSizes(const Op& op, const SlotLaunch& launch);

// Returns how the launch writes the gradient of a parameter, which is outputs[output].
GradientScale ParameterScale(const Op& op, const SlotLaunch& launch, Role gradient);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_SLOT_OPERANDS_H_
