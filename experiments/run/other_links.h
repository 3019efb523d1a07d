// Changes the rates at which a run copies between device and host, both in the device's links and
// in the times of the cost model.

#ifndef SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_
#define SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_

#include "experiments/run/prepared.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"

namespace spillway::lab {

inline constexpr Bandwidth kFastestLink{1'000'000'000'000'000'000};
// Returns `rate * factor`, but at least `Device::kLeastBandwidth` and at most `kFastestLink`.
Bandwidth Scaled(Bandwidth rate, double factor);

// Returns the run with copies in the direction at `rate`. The limit on both directions together
// grows by `rate`, so that it does not slow these copies.
Draft WithLink(Draft run, Direction direction, Bandwidth rate);

// Returns the run with its bandwidths multiplied by `share`: that of each direction and the limit
// on both directions together.
Draft WithSlowerLinks(Draft run, double share);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_
