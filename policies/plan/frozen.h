// The frozen parameters of a recorded program that are on the host, as `spillway_torch.fit` has
// them: which of them leave the device, and how many come before they are used.

#ifndef SPILLWAY_POLICIES_PLAN_FROZEN_H_
#define SPILLWAY_POLICIES_PLAN_FROZEN_H_

#include <span>
#include <vector>

#include "policies/plan/facts.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::policies {

// Returns the bytes of parameters that come before they are used, if so many bytes of them are on
// the host.
Bytes WindowOf(Bytes outside);

// Returns those of the parameters `frozen` that leave if about `size` of their bytes do, at equal
// distances in the order of their first uses. Those that are used again soon, for the last time,
// leave after the others, and those that are larger than what comes ahead leave last.
std::vector<TensorId> LeavingFrozen(const JointFacts& facts, std::span<const TensorId> frozen,
                                    Bytes size);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_FROZEN_H_
