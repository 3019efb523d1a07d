// What simulation alone finds out: the ideal run, and how much memory a policy needs.

#ifndef SPILLWAY_EXPERIMENTS_RUN_SIMULATE_H_
#define SPILLWAY_EXPERIMENTS_RUN_SIMULATE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "experiments/run/assembler.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"

namespace spillway {

// The run that the slowdown of all others refers to: unlimited memory, the fastest algorithms,
// nothing moved.
Report SimulateIdeal(const Setup& setup);

// The memory that a policy needs for the setup's trace with its allocator; its memory does not
// matter. Found by the search of vDNN++ (section IV-B): from the most bytes that the policy holds
// with unlimited memory, up by what the request that fails lacks, until it fits. `make_policy`
// is called once per trial. nullopt if the pinned host pool is too small for it.
std::optional<Bytes> NeededMemory(const Setup& setup,
                                  const std::function<std::unique_ptr<Policy>()>& make_policy);

// A memory budget: a size ("12GiB"), "unlimited", "N%", that far from `LayerBound` (0 %) to what
// the ideal run reserves with this allocator (100 %), or a built-in policy ("vdnn-conv"), for what
// that one needs, at most the device's memory. `ideal` is `SimulateIdeal` of the set-up, which
// is simulated where it is not given. Throws `UsageError`.
Bytes ParseMemory(std::string_view text, const Setup& setup, const Report* ideal = nullptr);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_SIMULATE_H_
