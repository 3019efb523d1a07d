// The trace of a recorded step after a change of its program that makes it run other ops or hold
// other tensors: gradient accumulation, weights in bf16, another optimizer.
//
// The new ops take as long as their traffic takes in the device's memory. The new recording has no
// measured step and peaks.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_

#include <cstdint>
#include <optional>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns a step that computes `whole` in passes of forward and backward over micro-batches, each
// of which is that of `part`, and one update. Each pass but the first adds its gradients to those
// of the first. All data of `whole` is on the device. What the program holds until the update or
// longer it holds in the last pass only. Returns nullopt if an op of forward or backward follows
// one of the update. REQUIRES: both are the same recorded step at different batches, and there are
// at least two passes.
std::optional<Trace> InMicroBatches(const Trace& whole, const Trace& part, const Device& device,
                                    int64_t passes);

// Returns the step with all parameters and computed values of fp32 in bf16, as `model.bfloat16()`
// leaves them if the program casts nothing but the input of its log-softmax and loss, which it
// computes in fp32, as transformers does. The products get the device's rate for bf16; measured
// times change as the device's roofline does. Returns nullopt if the trace has no parameter in
// fp32, or values of 16 bits already. REQUIRES: the trace has a recording, and `cost` has times for
// its ops.
std::optional<Trace> InBfloat16(const Trace& trace, const Device& device, const CostModel& cost);

// Both optimizers below keep moments of fewer elements as they are.
inline constexpr int64_t kLeastMoments = 4096;

// Returns the step with the moments of an optimizer like Adam kept in 8 bits, as bitsandbytes does
// from version 0.45 on: of n elements in n bytes and a number of fp32 for each 256 of them. One op
// updates the parameters, without temporary tensors. Returns nullopt if the update phase does not
// hold two moments for each parameter that it changes, those with few elements apart. REQUIRES: the
// trace has a recording.
std::optional<Trace> With8BitOptimizer(const Trace& trace, const Device& device);

// Returns the step of a model whose construction takes no memory of the device beside the model: it
// is built on the host, or in the types that it has. Returns nullopt if its construction gives
// nothing back. REQUIRES: the trace has a recording.
std::optional<Trace> BuiltElsewhere(const Trace& trace);

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

// Returns the step with updates in parts of at most 64 MiB of moments, as `spillway_torch.fit`
// makes them of those on the host. A policy can have the moments of a part outside but while its
// update runs. An update takes its share of the time of all, and no more temporary tensors than its
// part needs. Returns nullopt in the cases of `With8BitOptimizer`, or if a large parameter has no
// gradient of its own. REQUIRES: the trace has a recording. `cost` has times for its ops.
//
// If updates are `early`, each follows the op of backward that completes its last gradient, and its
// gradients are then freed; nullopt also in the other cases of `WithOffloadedOptimizer`. Else they
// follow backward, and only so many `eighths` of the moments are in parts; one op, whose moments
// stay on the device, updates the rest.
std::optional<Trace> WithUpdatesInParts(const Trace& trace, const CostModel& cost, bool early,
                                        int64_t eighths = 8);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_
