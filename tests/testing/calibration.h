// Measurements of a machine whose times follow linear laws exactly.

#ifndef SPILLWAY_TESTS_TESTING_CALIBRATION_H_
#define SPILLWAY_TESTS_TESTING_CALIBRATION_H_

#include "sim/core/calibration.h"

namespace spillway::testing {

// Returns the measurements of an "ACME Accelerator" with 80000 MiB + 77 bytes of memory:
// - Copies take 3 us + 1/(50 GB/s) to the device and 4 us + 1/(40 GB/s) to the host. While both
//   directions copy, the rates are 30 and 35 GB/s.
// - Device memory moves 2 TB/s after 5 us. A launch takes 2.5 us.
// - cudaMalloc takes 40 us + 20 ns/MiB, or 2 us below 2 MiB. cudaFree takes 50 us + 60 ns/MiB, or 1
//   us below 2 MiB.
// - Mapping existing pages takes 3 us + 4 us/MiB, mapping new pages 5 us + 6 us/MiB, and unmapping
//   7 us + 8 us/MiB.
// - cudaMallocHost takes 100 us + 0.3 ms/MiB, cudaFreeHost 80 us + 0.1 ms/MiB.
// - Library calls take 100, 200 and 400 us.
// - A DRAM-bound kernel is 1.1 times slower during copies, and the copies are 1.05 times slower.
Measurements ExactMeasurements();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_CALIBRATION_H_
