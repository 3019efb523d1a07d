// The kernels that a calibration times, as host functions that enqueue them on a stream.
//
// All pointers are device pointers. No function waits for the device. Each function throws `Error`
// if the launch fails.

#ifndef SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_
#define SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace spillway::cuda {

// Launches one thread that does nothing.
void LaunchEmpty(cudaStream_t stream);

// Launches a copy of `bytes` bytes whose speed is bound by device memory. REQUIRES: `bytes` is a
// multiple of 16, both pointers are aligned to 16 bytes and the ranges do not overlap.
void LaunchStreamCopy(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream);

// Launches `blocks` blocks that multiply and add in registers. `sink` points to one float. It gives
// the kernel a result, but is never written. Returns the number of floating-point operations, where
// a multiply-add counts as two.
int64_t LaunchMultiplyAdd(float* sink, int blocks, cudaStream_t stream);

// Launches one thread that writes the device's clock, in nanoseconds, to start_and_end[0] when it
// starts and to start_and_end[1] when it ends.
void LaunchStamp(int64_t* start_and_end, cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CALIBRATION_KERNELS_H_
