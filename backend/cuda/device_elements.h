// Device code that reads and writes elements, some at a time, and calculates with floats.

#ifndef SPILLWAY_BACKEND_CUDA_DEVICE_ELEMENTS_H_
#define SPILLWAY_BACKEND_CUDA_DEVICE_ELEMENTS_H_

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/elements.h"

namespace spillway::cuda {

inline constexpr int kThreads = 256;

template <int kWidth>
struct Floats {
  float v[kWidth];
};

// `kWidth` elements as they were loaded. Conversions are left until the values are used, so that
// the loads of several operands are under way at the same time.
template <int kWidth>
struct Pack {
  uint32_t word[kWidth];
  bool bf16;

  __device__ float operator[](int k) const {
    if (!bf16) return __uint_as_float(word[k]);
    return __uint_as_float(k % 2 == 0 ? word[k / 2] << 16 : word[k / 2] & 0xffff0000u);
  }
};

// Moves `kWords` words, four or two at a time. REQUIRES: both addresses are aligned for that.
template <int kWords>
__device__ void MoveWords(const uint32_t* from, uint32_t* to) {
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int k = 0; k < kWords; k += 4) {
      *reinterpret_cast<uint4*>(to + k) = *reinterpret_cast<const uint4*>(from + k);
    }
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
  } else {
#pragma unroll
    for (int k = 0; k < kWords; ++k) to[k] = from[k];
  }
}

template <int kWidth>
__device__ Pack<kWidth> Load(const ConstElements& from, int64_t i) {
  alignas(16) Pack<kWidth> pack;
  pack.bf16 = from.bf16;
  if (!from.bf16) {
    MoveWords<kWidth>(static_cast<const uint32_t*>(from.data) + i, pack.word);
  } else if constexpr (kWidth == 1) {
    pack.word[0] = static_cast<const uint16_t*>(from.data)[i];
  } else {
    MoveWords<kWidth / 2>(static_cast<const uint32_t*>(from.data) + i / 2, pack.word);
  }
  return pack;
}

template <int kWidth>
__device__ void Store(const Elements& to, int64_t i, const Floats<kWidth>& floats) {
  alignas(16) uint32_t word[kWidth];
  if (!to.bf16) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) word[k] = __float_as_uint(floats.v[k]);
    MoveWords<kWidth>(word, static_cast<uint32_t*>(to.data) + i);
  } else if constexpr (kWidth == 1) {
    static_cast<__nv_bfloat16*>(to.data)[i] = __float2bfloat16_rn(floats.v[0]);
  } else {
#pragma unroll
    for (int k = 0; k < kWidth; k += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(floats.v[k], floats.v[k + 1]);
      word[k / 2] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    MoveWords<kWidth / 2>(word, static_cast<uint32_t*>(to.data) + i / 2);
  }
}

template <int kWidth>
__device__ void StoreOrAdd(const Elements& to, int64_t i, Floats<kWidth> floats, bool accumulate) {
  if (accumulate) {
    const Pack<kWidth> old = Load<kWidth>(to, i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) floats.v[k] += old[k];
  }
  Store(to, i, floats);
}

__device__ inline float LoadOne(const ConstElements& from, int64_t i) {
  return Load<1>(from, i)[0];
}
__device__ inline void StoreOne(const Elements& to, int64_t i, float value) {
  Store<1>(to, i, {{value}});
}

// Returns true iff the arrays may be moved 16 bytes at a time from their beginnings.
inline bool Aligned(std::initializer_list<ConstElements> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const ConstElements& array) {
    return reinterpret_cast<uintptr_t>(array.data) % 16 == 0;
  });
}

// Calls function.Do<kWidth>(i) for every kWidth-th i in [0, count), and Do<1> for the remaining
// elements.
template <int kWidth, typename Function>
__global__ void ForEachKernel(int64_t count, Function function) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  if (i + kWidth <= count) {
    function.template Do<kWidth>(i);
  } else {
    for (int64_t j = i; j < count; ++j) function.template Do<1>(j);
  }
}

// Returns i / divisor. Most indices fit in 32 bits, which makes division much cheaper. REQUIRES: i
// >= 0 and divisor > 0.
__device__ inline int64_t Quotient(int64_t i, int64_t divisor) {
  if ((i | divisor) >> 32 != 0) return i / divisor;
  return static_cast<uint32_t>(i) / static_cast<uint32_t>(divisor);
}

inline unsigned BlockCount(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// Calls `function` for all elements. If `wide`, it does so for four or eight at a time, where four
// elements of the shortest of `arrays`, or eight, are 16 bytes.
template <typename Function>
void ForEach(int64_t count, std::initializer_list<ConstElements> arrays, bool wide,
             const Function& function, cudaStream_t stream) {
  if (count <= 0) return;
  const bool bf16 =
      std::any_of(arrays.begin(), arrays.end(), [](const ConstElements& a) { return a.bf16; });
  if (!wide || !Aligned(arrays)) {
    ForEachKernel<1><<<BlockCount(count), kThreads, 0, stream>>>(count, function);
  } else if (bf16) {
    ForEachKernel<8><<<BlockCount((count + 7) / 8), kThreads, 0, stream>>>(count, function);
  } else {
    ForEachKernel<4><<<BlockCount((count + 3) / 4), kThreads, 0, stream>>>(count, function);
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

struct Max {
  __device__ static float Join(float a, float b) { return fmaxf(a, b); }
  static constexpr float kNeutral = -INFINITY;
};
struct Sum {
  __device__ static float Join(float a, float b) { return a + b; }
  static constexpr float kNeutral = 0;
};

// Returns to every thread the reduction over its warp.
template <typename Operation>
__device__ float WarpReduce(float value) {
  for (int half = 16; half > 0; half /= 2) {
    value = Operation::Join(value, __shfl_xor_sync(0xffffffffu, value, half));
  }
  return value;
}

// Returns to every thread the reduction over the block's values. The order is a fixed tree, so the
// result is deterministic. REQUIRES: whole warps, at most 32.
template <typename Operation>
__device__ float BlockReduce(float value) {
  __shared__ float shared[32];
  value = WarpReduce<Operation>(value);
  const unsigned warps = blockDim.x / 32;
  if (warps == 1) return value;
  const unsigned lane = threadIdx.x % 32;
  __syncthreads();  // waits until the previous use of `shared` is over
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return WarpReduce<Operation>(lane < warps ? shared[lane] : Operation::kNeutral);
}

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_DEVICE_ELEMENTS_H_
