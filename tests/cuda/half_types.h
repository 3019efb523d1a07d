// Copies of host values in device memory, rounded to a type.

#ifndef SPILLWAY_TESTS_CUDA_HALF_TYPES_H_
#define SPILLWAY_TESTS_CUDA_HALF_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "traces/ops/data_type.h"

namespace spillway::testing {

// Returns the 16 bits of the nearest value of a type of two bytes, and the value of such bits.
inline uint16_t ToHalf(float value, DataType type) {
  return type == DataType::kBfloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                                     : __half_as_ushort(__float2half_rn(value));
}
inline float FromHalf(uint16_t bits, DataType type) {
  return type == DataType::kBfloat16 ? __bfloat162float(__ushort_as_bfloat16(bits))
                                     : __half2float(__ushort_as_half(bits));
}

// Rounds the values to a type of 2 or 4 bytes.
inline void Round(std::vector<float>& values, DataType type) {
  if (type == DataType::kFloat32) return;
  for (float& value : values) value = FromHalf(ToHalf(value, type), type);
}

// Copies the values to the device.
inline DeviceBuffer Upload(const std::vector<float>& values, DataType type) {
  std::vector<uint16_t> halves;
  if (type != DataType::kFloat32) {
    for (const float value : values) halves.push_back(ToHalf(value, type));
  }
  const void* from = halves.empty() ? static_cast<const void*>(values.data()) : halves.data();
  DeviceBuffer buffer(Bytes(static_cast<int64_t>(values.size()) * ElementSize(type)));
  SPILLWAY_CUDA_CALL(
      cudaMemcpy(buffer.data(), from, buffer.size().count(), cudaMemcpyHostToDevice));
  return buffer;
}

// Returns the values of a range of device memory.
inline std::vector<float> Download(const DeviceRange& range, DataType type) {
  std::vector<float> values(static_cast<size_t>(range.size.count() / ElementSize(type)));
  std::vector<uint16_t> halves(type == DataType::kFloat32 ? 0 : values.size());
  void* to = halves.empty() ? static_cast<void*>(values.data()) : halves.data();
  SPILLWAY_CUDA_CALL(cudaMemcpy(to, range.data, range.size.count(), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < halves.size(); ++i) values[i] = FromHalf(halves[i], type);
  return values;
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_CUDA_HALF_TYPES_H_
