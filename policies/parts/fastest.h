// The choice of the fastest of several policies, by trial runs.

#ifndef SPILLWAY_POLICIES_PARTS_FASTEST_H_
#define SPILLWAY_POLICIES_PARTS_FASTEST_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::policies {

// The candidates, by index. The first of two equally fast candidates is preferred.
struct Candidates {
  size_t count = 0;  // more than 0
  std::function<std::unique_ptr<Policy>(size_t candidate)> make;
  size_t in_core = 0;  // moves nothing and runs the fastest kernels; `count` if there is none
};

struct Fastest {
  size_t candidate = 0;
  Bytes memory;  // the memory in which it is the fastest
};

// Returns the fastest candidate and the memory in which it is the fastest. Each candidate is tried
// in the device's memory, and in each smaller memory that is 0 %, 10 %, ... 100 % of the way from
// the floor of layer-wise policies to the in-core peak. So a device with more memory is never
// slower than one with such a smaller memory. If the candidate in core fits, nothing else is tried.
// If nothing fits, returns the last candidate in all of the device's memory.
Fastest ChooseFastest(const Trace& trace, const Device& device, const TrialRun& trial,
                      const Candidates& candidates);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_FASTEST_H_
