// The calibrator, which measures how fast the GPU of this machine copies, launches and allocates.
//
// It returns raw measurements; experiments/tools/measure/calibration_fit.h fits laws to them. Every
// number is the median of repeats after a warm-up. Times on the device exclude host gaps: all
// streams of a measurement are held until everything is enqueued. call_timing.h times calls for
// memory and calls of the convolution library. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_
#define SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

#include "sim/core/calibration.h"
#include "traces/base/units.h"

namespace spillway::cuda {

// Progress that is reported before each step. The view lives until the callback returns.
struct CalibrateProgress {
  size_t step = 0;   // from 0
  size_t steps = 0;  // number of steps
  std::string_view what;
};

struct CalibrateOptions {
  int device = 0;           // CUDA's number of the GPU
  std::optional<int> peer;  // CUDA's number of another GPU, to time copies to and from it too
  int repeats = 20;         // each measurement's repeats, at least five; slow host calls have fewer
  // Sizes are powers of two up to these limits, and up to the limit of the device's free memory.
  Bytes largest_copy = Bytes::GiB(1);  // pins twice as much host memory
  Bytes largest_device_copy = Bytes::GiB(4);
  Bytes largest_allocation = Bytes::GiB(4);
  Bytes largest_pinned = Bytes::GiB(1);
  Duration clock_warmup = Duration::Milliseconds(1000);    // kernels and copies run first
  std::function<void(const CalibrateProgress&)> progress;  // may be empty
};

// Returns the GPU as its driver describes it: `gpu`, `memory`, `l2_cache`, `compute_capability` and
// `flops`. Throws `EnvironmentError` that names the missing part if there is no usable GPU.
Machine DescribeGpu(int device);

// Measures the machine. This takes less than a minute and needs an otherwise idle GPU. Throws
// `EnvironmentError` that names the missing part if there is no usable GPU, and `UsageError` if the
// device is its own peer. Throws `Error` if memory for the buffers is missing, or if the host is
// too slow to keep the device busy.
Measurements Calibrate(const CalibrateOptions& options);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_
