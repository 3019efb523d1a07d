// What measurements on a GPU share: streams and events as objects, clocks, percentiles, and the
// names of driver and library.

#ifndef SPILLWAY_BACKEND_CUDA_STREAM_H_
#define SPILLWAY_BACKEND_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "traces/base/units.h"

namespace spillway {

// The longest that a measurement holds a stream by `Spin` while the host enqueues.
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

// An event without a time stamp. A host that waits for it spins, unless it is to sleep: then it
// wakes so late that a GPU with short ops would run dry.
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

// From one time stamp to the other; negative if `end` came first. REQUIRES: both have happened.
Duration Elapsed(const TimingEvent& start, const TimingEvent& end);

// A clock of the host that never goes back.
Duration HostClock();

// `time` / `n`, rounded. REQUIRES: n > 0.
Duration Divide(Duration time, int64_t n);

// The value, in picoseconds, below which `fraction` of the sorted, non-empty `times` lie,
// interpolated.
double Percentile(const std::vector<Duration>& times, double fraction);

// (90th percentile - 10th percentile) / median of the sorted, non-empty `times`; 0 for a median of
// 0.
double Spread(const std::vector<Duration>& times);

// "580.65.06", or the CUDA version that the driver supports where the kernel module does not say.
std::string DriverVersion();
// "13.0", of the CUDA runtime.
std::string RuntimeVersion();
// "2025-11-02T10:20:30Z".
std::string DateNow();
// "spillway 0.1.0".
std::string ToolVersion();

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_STREAM_H_
