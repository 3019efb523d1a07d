// The trace of a recorded step like Adam's with another way to keep moments and to update
// parameters: in 8 bits, on the host, or in parts.
//
// The new ops and the new recording are as those of changed_step.h.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_OTHER_OPTIMIZER_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_OTHER_OPTIMIZER_H_

#include <cstdint>
#include <optional>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Moments of fewer elements stay as they are.
inline constexpr int64_t kLeastMoments = 4096;

// Returns the step with the moments of an optimizer like Adam kept in 8 bits, as bitsandbytes does
// from version 0.45 on: of n elements in n bytes and a number of fp32 for each 256 of them. One op
// updates the parameters, without temporary tensors. Returns nullopt if the update phase does not
// hold two moments for each parameter that it changes, those with few elements apart. REQUIRES: the
// trace has a recording.
std::optional<Trace> With8BitOptimizer(const Trace& trace, const Device& device);

struct OffloadedStep {
  Trace trace;
  Bytes host;  // pinned memory of the host: parameters, gradients and moments
};

// Returns the step with moments, and the update of the parameters that they belong to, on the host,
// as torchao's `CPUOffloadOptimizer` with `offload_gradients`: each gradient is copied to the host
// while backward goes on, and then freed. The update takes as long as the later copies, and then as
// the host's update at `Device::host_update` or the copies of the parameters back, whichever takes
// longer.
// Returns nullopt in the cases of `With8BitOptimizer`, if an op behind backward, such as one that
// clips gradients, uses one, or if a gradient exists before an op of forward, as where several
// passes add to it. REQUIRES: the trace has a recording. `cost` has times for its ops.
std::optional<OffloadedStep> WithOffloadedOptimizer(const Trace& trace, const Device& device,
                                                    const CostModel& cost);

// Returns the step with updates in parts of at most 64 MiB of moments, or a 128th of all if that is
// more, as `spillway_torch.fit` makes them of those on the host. A policy can have the moments of a
// part outside but while its update runs. An update takes its share of the time of all, and no more
// temporary tensors than its part needs. Returns nullopt in the cases of `With8BitOptimizer`, or if
// a large parameter has no gradient of its own. REQUIRES: the trace has a recording. `cost` has
// times for its ops.
//
// If updates are `early`, each follows the op of backward that completes its last gradient, and its
// gradients are then freed; nullopt also in the other cases of `WithOffloadedOptimizer`. Else they
// follow backward, and only so many `eighths` of the moments are in parts; one op, whose moments
// stay on the device, updates the rest.
std::optional<Trace> WithUpdatesInParts(const Trace& trace, const CostModel& cost, bool early,
                                        int64_t eighths = 8);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_OTHER_OPTIMIZER_H_
