// The trace of a recorded step in fp32 as it would run under autocast to bf16.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_AUTOCAST_STEP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_AUTOCAST_STEP_H_

#include <optional>
#include <string>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the step whose forward runs under `torch.autocast("cuda", torch.bfloat16)`, by PyTorch's
// lists of operators ("Automatic Mixed Precision", CUDA Ops that Autocast to float16 and to
// float32): products run in bf16, some operators in fp32, and all others in the widest type of
// their operands. What they need in another type is cast before them, in bf16 once for each weight,
// and autograd saves the copy. Gradients have the types of what they are gradients of.
//
// The program itself is assumed to cast to fp32 what its log-softmax reads, as transformers do for
// language models, and to compute products without gradients, such as rotary tables, outside of
// autocast. The new casts take as long as their traffic takes in the device's memory.
//
// Returns nullopt if the trace has no parameter in fp32, or values of 16 bits already, or does not
// say what autograd saved, and so does not come from spillway_torch, whose ops of backward have the
// layer of their op of forward. Returns nullopt with a sentence in `why_not` if PyTorch takes
// attention apart in fp32, because one operator does all of it in bf16. REQUIRES: the trace has a
// recording, and `cost` has times for its ops.
std::optional<Trace> UnderAutocast(const Trace& trace, const Device& device, const CostModel& cost,
                                   std::string& why_not);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_AUTOCAST_STEP_H_
