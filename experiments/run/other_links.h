// A setup whose copies between device and host run at other rates: the device's links and the cost
// model's times alike.

#ifndef SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_
#define SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_

#include "experiments/run/setup.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"

namespace spillway {

// At most `kFastestLink`, and at least what any device has.
inline constexpr Bandwidth kFastestLink{1'000'000'000'000'000'000};
Bandwidth Scaled(Bandwidth rate, double factor);

// With copies in that direction at this rate, which the limit on both directions leaves them.
Setup WithLink(Setup setup, Direction direction, Bandwidth rate);

// With this share of the bandwidth, in both directions and together.
Setup WithSlowerLinks(Setup setup, double share);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_OTHER_LINKS_H_
