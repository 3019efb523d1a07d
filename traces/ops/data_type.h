// The types of a tensor's elements and the arithmetic of matrix products, with their spelling in
// files.

#ifndef SPILLWAY_TRACES_OPS_DATA_TYPE_H_
#define SPILLWAY_TRACES_OPS_DATA_TYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spillway::traces {

// The type of a tensor's elements, with the names of PyTorch.
enum class DataType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBfloat16,
  kFloat8E4m3fn,
  kFloat8E5m2,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
  kComplex64,
  kComplex128,
};
inline constexpr std::array kDataTypeNames = std::to_array<std::string_view>(
    {"float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
     "int16", "int8", "uint8", "bool", "complex64", "complex128"});

// The arithmetic in which a GPU multiplies matrices. Sums are kept in fp32. In tf32 the operands
// are float32 tensors, whose elements are rounded to 10 bits of mantissa before the product.
enum class Arithmetic : uint8_t { kFp32, kTf32, kBf16, kFp16, kFp8 };
inline constexpr std::array kArithmeticNames =
    std::to_array<std::string_view>({"fp32", "tf32", "bf16", "fp16", "fp8"});

// The bytes of one element of each type.
inline constexpr std::array<int64_t, kDataTypeNames.size()> kElementSizes{4, 8, 2, 2, 1, 1, 8,
                                                                          4, 2, 1, 1, 1, 8, 16};
constexpr int64_t ElementSize(DataType type) { return kElementSizes[static_cast<size_t>(type)]; }

constexpr std::string_view Name(DataType type) { return kDataTypeNames[static_cast<size_t>(type)]; }
constexpr std::string_view Name(Arithmetic arithmetic) {
  return kArithmeticNames[static_cast<size_t>(arithmetic)];
}

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_OPS_DATA_TYPE_H_
