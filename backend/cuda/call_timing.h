// Measures the host times of calls that an iteration may have to wait for: calls of the driver that
// allocate and free memory, and calls of the convolution library.
//
// The calls are timed under the conditions of an iteration rather than back to back. Between two
// calls, kernels use the memory and then other memory, and the host waits for the device. Each
// number is the median of at least five repeats. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_
#define SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_

#include <vector>

#include "sim/core/calibration.h"
#include "traces/base/units.h"

namespace spillway::cuda {

// The least number of repeats of a measurement.
inline constexpr int kLeastRepeats = 5;

// Returns the median, spread and number of `times`, in any order. REQUIRES: `times` is not empty.
Timing Summarise(std::vector<Duration> times);

// All functions below time calls on the current device. Sizes are powers of two up to `largest`.
// Fast calls are repeated `repeats` times, slow calls less often. The functions throw `Error` if a
// call fails.

// Times cudaMalloc and cudaFree of blocks from 512 B on. Up to 32 blocks are alive at once, on at
// most half of the free memory.
std::vector<AllocationTiming> TimeDeviceMemory(Bytes largest, int repeats);

// Times cudaMallocHost, which touches the memory, and cudaFreeHost of blocks from 1 MiB on, one at
// a time.
std::vector<AllocationTiming> TimePinnedMemory(Bytes largest, int repeats);

// Times the mapping and unmapping of ranges of 2 MiB pages, up to an eighth of the free memory.
// Returns an empty list if the driver cannot map pages.
std::vector<PageTiming> TimePageMemory(Bytes largest, int repeats);

// Times convolutions of common shapes, forward and backward, with every deterministic algorithm
// that needs at most 256 MiB of workspace.
std::vector<LibraryCallTiming> TimeLibraryCalls(int repeats);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_
