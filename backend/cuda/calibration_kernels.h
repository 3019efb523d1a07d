// The kernels that a calibration times, as host functions that enqueue them on a stream.
//
// All pointers are device pointers; nothing synchronises. Each throws `Error` if the launch fails.

#ifndef SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_
#define SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace spillway {

// One thread that does nothing.
void LaunchEmpty(cudaStream_t stream);

// Reads `bytes` bytes and writes as many, bound by device memory. REQUIRES: bytes is a multiple of
// 16, both pointers are aligned to 16 bytes and the ranges do not overlap.
void LaunchStreamCopy(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream);

// Multiplies and adds in registers on `blocks` blocks; writes nothing in effect. `sink` takes one
// float. Returns its operations, a multiply-add counted as two.
int64_t LaunchMultiplyAdd(float* sink, int blocks, cudaStream_t stream);

// One thread writes the device's clock, in nanoseconds, at its start and its end.
void LaunchStamp(int64_t* start_and_end, cudaStream_t stream);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_
