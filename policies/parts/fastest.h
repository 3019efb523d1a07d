// The choice of policies that claim to be the fastest: trial runs of all that they could be.

#ifndef SPILLWAY_POLICIES_PARTS_FASTEST_H_
#define SPILLWAY_POLICIES_PARTS_FASTEST_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

struct Candidates {
  size_t count = 0;  // in the order of preference where two are equally fast; more than 0
  std::function<std::unique_ptr<Policy>(size_t candidate)> make;
  size_t in_core = 0;  // moves nothing, with the fastest kernels; `count` if there is none
};

struct Fastest {
  size_t candidate = 0;
  Bytes memory;  // in which it is the fastest
};

// Tries each candidate in the device's memory and in whatever there is less of 0 %, 10 %, ... 100 %
// of the way from the floor of layer-wise policies to the in-core peak: so no device is slower than
// one that has as much as one of these and less memory. Nothing else is tried where the candidate
// in core fits. The last candidate in all of the memory if none fits.
Fastest ChooseFastest(const Trace& trace, const Device& device, const TrialRun& trial,
                      const Candidates& candidates);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_FASTEST_H_
