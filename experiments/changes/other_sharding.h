// The trace of a recorded process of a step of FSDP2 (`fully_shard`) with other times at which
// gathered parameters exist, or with other numbers in which gradients are reduced.
//
// The new recording has no measured step and peaks, and not the steps that ran before it.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_OTHER_SHARDING_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_OTHER_SHARDING_H_

#include <optional>
#include <string>

#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the step with `reshard_after_forward=True` in all modules but the root: the parameters
// that a module gathers are freed behind its forward. Before a module's backward they are gathered
// again, unless that was done ahead of time, and then those of the module that ended before it in
// forward, as FSDP2 prefetches by default.
//
// Returns nullopt if backward gathers parameters already, or none are gathered in forward. Returns
// nullopt with a sentence in `why_not` if the recording does not name the modules, a module runs
// more than once in forward, or others use its parameters. REQUIRES: the trace has a recording.
std::optional<Trace> WithReshardAfterForward(const Trace& trace, std::string& why_not);

// Returns the step with `MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)` in place of fp32: the
// gradients in bf16 of parameters that were gathered in bf16 are reduced as they are, and cast to
// the type of the parameters behind that. Where the recording has times, the new casts take as long
// as their traffic takes in the device's memory.
//
// Returns nullopt if no gradients in bf16 are reduced in fp32. Returns nullopt with a sentence in
// `why_not` if the program adds gradients up before it reduces them, or uses what is reduced in
// another way. REQUIRES: the trace has a recording.
std::optional<Trace> WithBfloat16Reduction(const Trace& trace, const Device& device,
                                           std::string& why_not);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_OTHER_SHARDING_H_
