// Shared by measurements on a GPU: streams and events as objects, clocks, percentiles, and the
// names of driver and library.

#ifndef SPILLWAY_BACKEND_CUDA_STREAM_H_
#define SPILLWAY_BACKEND_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "traces/base/units.h"

namespace spillway::cuda {

// The longest time for which a measurement holds a stream by `Spin` while the host enqueues.
inline constexpr Duration kLongestSpin = Duration::Milliseconds(20);

class CudaStream {
 public:
  CudaStream();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class TimingEvent {
 public:
  TimingEvent();
  ~TimingEvent();
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  cudaEvent_t get() const { return event_; }

  void Record(const CudaStream& stream) const;
  void Synchronize() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// An event without a time stamp. A host that waits for it spins, unless `waiting` is
// cudaEventBlockingSync. A sleeping host wakes so late that a GPU with short ops would run out of
// work.
class OrderEvent {
 public:
  explicit OrderEvent(unsigned waiting = cudaEventDefault);
  ~OrderEvent();
  OrderEvent(const OrderEvent&) = delete;
  OrderEvent& operator=(const OrderEvent&) = delete;
  cudaEvent_t get() const { return event_; }

  void Record(const CudaStream& stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Returns the time from `start` to `end`, which is negative if `end` came first. REQUIRES: both
// events have happened.
Duration Elapsed(const TimingEvent& start, const TimingEvent& end);

// Returns the time of a host clock that never goes back.
Duration HostClock();

// Returns `time` / `n`, rounded. REQUIRES: n > 0.
Duration Divide(Duration time, int64_t n);

// Returns the interpolated value, in picoseconds, below which `fraction` of the sorted `times` lie.
// REQUIRES: `times` is not empty.
double Percentile(const std::vector<Duration>& times, double fraction);

// Returns (90th percentile - 10th percentile) / median of the sorted `times`, or 0 if the median is
// 0. REQUIRES: `times` is not empty.
double Spread(const std::vector<Duration>& times);

// Returns for example "580.65.06", or the CUDA version that the driver supports if the kernel
// module does not tell its version.
std::string DriverVersion();
// Returns the version of the CUDA runtime, for example "13.0".
std::string RuntimeVersion();
// Returns the current time in UTC, for example "2025-11-02T10:20:30Z".
std::string DateNow();
// Returns for example "spillway 0.1.0".
std::string ToolVersion();

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_STREAM_H_
