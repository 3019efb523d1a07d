#include "backend/cuda/calibration_kernels.h"

#include "backend/cuda/cuda_error.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCopiesPerThread = 4;
constexpr int kIterations = 4096;
constexpr int kChains = 8;  // independent chains hide the latency of one operation

__global__ void EmptyKernel() {}

__global__ void StreamCopyKernel(const float4* __restrict__ from, float4* __restrict__ to,
                                 int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kCopiesPerThread) + threadIdx.x;
  float4 pack[kCopiesPerThread];
#pragma unroll
  for (int k = 0; k < kCopiesPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < count) pack[k] = __ldcs(from + i);
  }
#pragma unroll
  for (int k = 0; k < kCopiesPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < count) __stcs(to + i, pack[k]);
  }
}

__global__ void MultiplyAddKernel(float* sink, float factor) {
  float value[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) value[c] = static_cast<float>(threadIdx.x + c);
#pragma unroll 16
  for (int i = 0; i < kIterations; ++i) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) value[c] = fmaf(value[c], factor, 1.0f);
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += value[c];
  if (sum == -1.0f) *sink = sum;  // never happens, since all terms are positive
}

__device__ int64_t Nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void StampKernel(int64_t* start_and_end) {
  start_and_end[0] = Nanoseconds();
  __threadfence();
  start_and_end[1] = Nanoseconds();
}

}  // namespace

void LaunchEmpty(cudaStream_t stream) {
  EmptyKernel<<<1, 1, 0, stream>>>();
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void LaunchStreamCopy(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float4));
  constexpr int64_t kPerBlock = kThreads * kCopiesPerThread;
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  StreamCopyKernel<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<const float4*>(from),
                                                    reinterpret_cast<float4*>(to), count);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

int64_t LaunchMultiplyAdd(float* sink, int blocks, cudaStream_t stream) {
  MultiplyAddKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(sink, 0.5f);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
  return int64_t{2} * kChains * kIterations * kThreads * blocks;
}

void LaunchStamp(int64_t* start_and_end, cudaStream_t stream) {
  StampKernel<<<1, 1, 0, stream>>>(start_and_end);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway::cuda
