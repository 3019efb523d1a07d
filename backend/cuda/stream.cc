#include "backend/cuda/stream.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>

#include "backend/cuda/cuda_error.h"

#ifndef SPILLWAY_VERSION
#define SPILLWAY_VERSION "development"
#endif

namespace spillway::cuda {

CudaStream::CudaStream() {
  SPILLWAY_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

void CudaStream::Synchronize() const { SPILLWAY_CUDA_CALL(cudaStreamSynchronize(stream_)); }

TimingEvent::TimingEvent() { SPILLWAY_CUDA_CALL(cudaEventCreate(&event_)); }
TimingEvent::~TimingEvent() { cudaEventDestroy(event_); }

void TimingEvent::Record(const CudaStream& stream) const {
  SPILLWAY_CUDA_CALL(cudaEventRecord(event_, stream.get()));
}

void TimingEvent::Synchronize() const { SPILLWAY_CUDA_CALL(cudaEventSynchronize(event_)); }

OrderEvent::OrderEvent(unsigned waiting) {
  SPILLWAY_CUDA_CALL(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | waiting));
}
OrderEvent::~OrderEvent() { cudaEventDestroy(event_); }

void OrderEvent::Record(const CudaStream& stream) const {
  SPILLWAY_CUDA_CALL(cudaEventRecord(event_, stream.get()));
}

Duration Elapsed(const TimingEvent& start, const TimingEvent& end) {
  float milliseconds = 0;
  SPILLWAY_CUDA_CALL(cudaEventElapsedTime(&milliseconds, start.get(), end.get()));
  return Duration::Picoseconds(std::llround(static_cast<double>(milliseconds) * 1e9));
}

Duration HostClock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return Duration::Nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

Duration Divide(Duration time, int64_t n) {
  return Duration::Picoseconds((time.picoseconds() + n / 2) / n);
}

double Percentile(const std::vector<Duration>& times, double fraction) {
  const double position = fraction * static_cast<double>(times.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, times.size() - 1);
  const auto low = static_cast<double>(times[below].picoseconds());
  const auto high = static_cast<double>(times[above].picoseconds());
  return low + (position - static_cast<double>(below)) * (high - low);
}

double Spread(const std::vector<Duration>& times) {
  const double median = Percentile(times, 0.5);
  return median > 0 ? (Percentile(times, 0.9) - Percentile(times, 0.1)) / median : 0;
}

std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    // The file begins with "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
    const bool version = !word.empty() && std::count(word.begin(), word.end(), '.') >= 1 &&
                         word.find_first_not_of("0123456789.") == std::string::npos;
    if (version) return word;
  }
  int cuda = 0;
  SPILLWAY_CUDA_CALL(cudaDriverGetVersion(&cuda));
  return fmt::format("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
}

std::string RuntimeVersion() {
  int runtime = 0;
  SPILLWAY_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
  return fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
}

std::string DateNow() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string ToolVersion() { return "spillway " SPILLWAY_VERSION; }

}  // namespace spillway::cuda
