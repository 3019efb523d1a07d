// The calibrator: measures how fast the GPU of this machine copies, launches and allocates.
//
// Raw measurements only; experiments/tools/measure/calibration_fit.h fits laws to them. Every
// number is the median of repeats after a warm-up. Times on the device exclude host gaps: all
// streams of a measurement are held until everything is enqueued. Calls for memory and of the
// convolution library are timed by call_timing.h. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_
#define SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

#include "sim/core/calibration.h"
#include "traces/base/units.h"

namespace spillway {

// Reported before each step. The view lives until the callback returns.
struct CalibrateProgress {
  size_t step = 0;   // from 0
  size_t steps = 0;  // how many there are
  std::string_view what;
};

struct CalibrateOptions {
  int device = 0;           // CUDA's number of the GPU
  std::optional<int> peer;  // and of another whose memory copies reach, if that link is to be timed
  int repeats = 20;         // of each measurement, at least five; slow host calls stop earlier
  // Sizes are powers of two up to these, and up to what the device's free memory allows.
  Bytes largest_copy = Bytes::GiB(1);  // pins twice as much host memory
  Bytes largest_device_copy = Bytes::GiB(4);
  Bytes largest_allocation = Bytes::GiB(4);
  Bytes largest_pinned = Bytes::GiB(1);
  Duration clock_warmup = Duration::Milliseconds(1000);    // of kernels and copies, at the start
  std::function<void(const CalibrateProgress&)> progress;  // may be empty
};

// The GPU as its driver describes it: `gpu`, `memory`, `l2_cache`, `compute_capability` and
// `flops`. Throws `EnvironmentError` as `Calibrate` does.
Machine DescribeGpu(int device);

// Needs less than a minute and an otherwise idle GPU. Throws `EnvironmentError` that says what is
// missing if there is no usable GPU; `UsageError` if the device is its own peer; `Error` if memory
// for the buffers is missing, or the host is too slow to keep the device busy.
Measurements Calibrate(const CalibrateOptions& options);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_CALIBRATOR_H_
