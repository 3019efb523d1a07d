// Measurements of a machine that follows its laws exactly.

#ifndef SPILLWAY_TESTS_TESTING_CALIBRATION_H_
#define SPILLWAY_TESTS_TESTING_CALIBRATION_H_

#include "sim/core/calibration.h"

namespace spillway::testing {

// An "ACME Accelerator" with 80000 MiB and a bit. Copies: 50 GB/s + 3 us in, 40 GB/s + 4 us out, 30
// and 35 GB/s beside each other. Device memory: 2 TB/s + 5 us. cudaMalloc 40 us + 20 ns/MiB, 2 us
// below 2 MiB; cudaFree 50 us + 60 ns/MiB, 1 us below 2 MiB; mapping pages 3 us + 4 us/MiB, new
// ones 5 us + 6 us/MiB, unmapping 7 us + 8 us/MiB; library calls 100, 200 and 400 us;
// cudaMallocHost 100 us + 0.3 ms/MiB; cudaFreeHost 80 us + 0.1 ms/MiB. Launch 2.5 us. A DRAM-bound
// kernel is 1.1 times slower beside copies and they 1.05.
Measurements ExactMeasurements();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_CALIBRATION_H_
