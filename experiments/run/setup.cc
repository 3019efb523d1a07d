#include "experiments/run/setup.h"

#include <algorithm>
#include <cstddef>

#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"

namespace spillway {

Duration Execution::typical_iteration() const {
  SPILLWAY_CHECK(!iteration_times.empty());
  if (iteration_times.size() < kWarmUp + 2) return iteration_times.back();
  std::vector<Duration> timed(iteration_times.begin() + kWarmUp, iteration_times.end() - 1);
  const auto middle = timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2);
  std::nth_element(timed.begin(), middle, timed.end());
  return *middle;
}

std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity) {
  if (setup.plan) return std::make_unique<Planned>(setup.plan, setup.device.alignment);
  return MakeAllocator(setup.allocator, capacity, setup.device.alignment);
}

}  // namespace spillway
