// Host times of the calls that an iteration may have to wait for: the driver's, which give and take
// memory, and the convolution library's.
//
// They are taken as they come within iterations, not back to back: kernels have used the memory,
// and other memory since, and the host has just waited for the device. Each number is the median of
// at least five repeats. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_
#define SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_

#include <vector>

#include "sim/core/calibration.h"
#include "traces/base/units.h"

namespace spillway {

// The fewest repeats of a measurement.
inline constexpr int kLeastRepeats = 5;

// `times` need not be sorted. REQUIRES: there is one.
Timing Summarise(std::vector<Duration> times);

// Of all of these on the current device: sizes are powers of two up to `largest`, `repeats` is what
// fast calls get. They throw `Error` if a call fails.

// cudaMalloc and cudaFree of blocks from 512 B, many alive at once, up to half of the free memory.
std::vector<AllocationTiming> TimeDeviceMemory(Bytes largest, int repeats);

// cudaMallocHost, which touches the memory, and cudaFreeHost of blocks from 1 MiB, one at a time.
std::vector<AllocationTiming> TimePinnedMemory(Bytes largest, int repeats);

// Ranges of 2 MiB pages, up to an eighth of the free memory. Empty if the driver cannot map pages.
std::vector<PageTiming> TimePageMemory(Bytes largest, int repeats);

// Convolutions of common shapes, forward and backward, with every algorithm that needs little
// workspace.
std::vector<LibraryCallTiming> TimeLibraryCalls(int repeats);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_CALL_TIMING_H_
