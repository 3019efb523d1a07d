// Dense arrays of float or bfloat16 elements in device memory. They own nothing. A function that
// takes `ConstElements` reads them; a function that takes `Elements` writes them too.

#ifndef SPILLWAY_BACKEND_CUDA_ELEMENTS_H_
#define SPILLWAY_BACKEND_CUDA_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

namespace spillway::cuda {

// Device code may call the constexpr functions. Arrays of float convert to arrays of elements.
struct ConstElements {
  const void* data = nullptr;
  bool bf16 = false;  // otherwise float

  constexpr ConstElements() = default;
  constexpr ConstElements(const void* first, bool is_bf16) : data(first), bf16(is_bf16) {}
  constexpr ConstElements(const float* floats) : data(floats) {}  // NOLINT: implicit
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  ConstElements operator+(int64_t count) const { return {bytes() + count * (bf16 ? 2 : 4), bf16}; }
};

struct Elements {
  void* data = nullptr;
  bool bf16 = false;

  constexpr Elements() = default;
  constexpr Elements(void* first, bool is_bf16) : data(first), bf16(is_bf16) {}
  constexpr Elements(float* floats) : data(floats) {}                // NOLINT: implicit
  constexpr operator ConstElements() const { return {data, bf16}; }  // NOLINT: implicit
  std::byte* bytes() const { return static_cast<std::byte*>(data); }
  // Returns the bytes of `count` elements.
  constexpr int64_t Size(int64_t count) const { return count * (bf16 ? 2 : 4); }
  Elements operator+(int64_t count) const { return {bytes() + Size(count), bf16}; }
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_ELEMENTS_H_
