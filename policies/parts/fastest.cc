#include "policies/parts/fastest.h"

#include <optional>
#include <vector>

#include "sim/core/report.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

constexpr int kStep = 10;  // percent

// Returns the memories to try that are smaller than the device's, the largest first.
std::vector<Bytes> LesserMemories(const Trace& trace, const Device& device, const TrialRun& trial) {
  if (device.memory == Bytes::Unlimited()) return {};
  Policy in_core;  // keeps everything and runs the fastest kernels
  const Bytes peak = trial(in_core, Bytes::Unlimited()).metrics.peak_reserved;
  const Bytes floor = LayerBound(trace, device.alignment);
  std::vector<Bytes> memories;
  for (int percent = 100; percent >= 0; percent -= kStep) {
    const Bytes memory = MemoryAt(percent, floor, peak, device.alignment);
    if (memory < device.memory) memories.push_back(memory);
  }
  return memories;
}

}  // namespace

Fastest ChooseFastest(const Trace& trace, const Device& device, const TrialRun& trial,
                      const Candidates& candidates) {
  SPILLWAY_CHECK(candidates.count > 0);
  Fastest fastest{candidates.count - 1, device.memory};
  std::optional<Duration> shortest;
  const auto try_all = [&](Bytes memory) {
    for (size_t i = 0; i < candidates.count; ++i) {
      const Report report = trial(*candidates.make(i), memory);
      if (!report.fits() || (shortest && report.metrics.iteration >= *shortest)) continue;
      fastest = {i, memory};
      shortest = report.metrics.iteration;
      if (i == candidates.in_core) return true;
    }
    return false;
  };
  if (try_all(device.memory)) return fastest;
  for (const Bytes memory : LesserMemories(trace, device, trial)) try_all(memory);
  return fastest;
}

}  // namespace spillway::policies
