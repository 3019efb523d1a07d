// The trace of a recorded step after a change of its program that makes it run other ops or hold
// other tensors: gradient accumulation, weights in bf16, another construction of the model.
//
// The new ops take as long as their traffic takes in the device's memory. The new recording has no
// measured step and peaks.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_

#include <cstdint>
#include <memory>
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

// Returns the step of a model whose construction takes no memory of the device beside the model: it
// is built on the host, or in the types that it has. Returns nullopt if its construction gives
// nothing back. REQUIRES: the trace has a recording.
std::optional<Trace> BuiltElsewhere(const Trace& trace);

// Returns the trace without the requests of the steps that ran before the recorded one, which a
// recording of one of several processes has: a changed program would have made others. They follow
// the last request for a parameter. The first step makes the optimizer state. Returns the trace as
// it is if it has no collectives of several processes.
std::shared_ptr<const Trace> WithoutEarlierSteps(std::shared_ptr<const Trace> trace);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_STEP_H_
