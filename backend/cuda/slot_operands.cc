#include "backend/cuda/slot_operands.h"

#include <fmt/format.h>

#include "traces/base/error.h"

namespace spillway::cuda {

bool IsBf16(const Op& op, DataType type) {
  if (type == DataType::kBfloat16) return true;
  if (type == DataType::kFloat32) return false;
  throw InputError(
      fmt::format("op '{}' ({}): an operand is {}; the CUDA backend computes with "
                  "float32 and bfloat16",
                  op.name, Name(op.type), Name(type)));
}

Elements Operands::Take(std::span<const DeviceRange> ranges, std::optional<size_t> i,
                        std::string_view what, int64_t elements) const {
  SPILLWAY_CHECK(i.has_value());  // the op's table row names every operand that its kernels use
  if (*i >= ranges.size()) {
    throw InputError(fmt::format("op '{}' ({}) has {} {}s, needs {}", op_.name, Name(op_.type),
                                 ranges.size(), what, *i + 1));
  }
  const DeviceRange& range = ranges[*i];
  const bool bf16 = range.type != DataType::kInt32 && IsBf16(op_, range.type);
  const int64_t bytes = elements * ElementSize(range.type);
  if (range.size < Bytes(bytes)) {
    throw InputError(fmt::format("op '{}' ({}): {} {} has {} bytes, needs {}", op_.name,
                                 Name(op_.type), what, *i, range.size.count(), bytes));
  }
  return {range.data, bf16};
}

float* Operands::Floats(ConstElements elements) const {
  if (elements.bf16) {
    throw InputError(fmt::format("op '{}': the CUDA backend executes {} ops in float32 only",
                                 op_.name, Name(op_.type)));
  }
  return static_cast<float*>(const_cast<void*>(elements.data));
}

const int32_t* Operands::Integers(Role role, int64_t elements) const {
  return static_cast<const int32_t*>(Read(role, elements).data);
}

std::vector<int64_t> ParameterSizes(const Op& op, const SlotLaunch& launch) {
  const size_t parameters = ParameterCount(op, launch.inputs.size(), launch.outputs.size());
  std::vector<int64_t> sizes;
  int64_t left = op.IntAttribute("elements");
  for (size_t i = 0; i < parameters; ++i) {
    const DeviceRange& range = launch.inputs[InputIndex(op, Role::kParameter, i).value()];
    sizes.push_back(range.size.count() / ElementSize(range.type));
    left -= sizes.back();
  }
  if (left == 0) return sizes;
  throw InputError(
      fmt::format("op '{}' ({}): the parameters have {} elements less than the {} of "
                  "attribute 'elements'",
                  op.name, Name(op.type), left, op.IntAttribute("elements")));
}

GradientScale ParameterScale(const Op& op, const SlotLaunch& launch, Role gradient) {
  if (op.Flag("fused_update")) return {-static_cast<float>(op.NumberAttribute("learning_rate")), 1};
  const bool adds = launch.first > 0 || op.Accumulates(OutputIndex(op, gradient).value());
  return {1, adds ? 1.0f : 0.0f};
}

}  // namespace spillway::cuda
