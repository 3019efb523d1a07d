// The ways in which the policies of the literature choose convolution algorithms.

#ifndef SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
#define SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway {

enum class KernelChoice : uint8_t {
  kPerformance,  // the fastest, whatever workspace it needs
  kMemory,       // the least workspace; of those, the fastest
  kGreedy,       // the fastest whose workspace fits in the largest free block right now
};

// Declares the parameter "algo" with the values memory, performance and greedy.
KernelChoice ReadKernelChoice(Params& params);

// Likewise without greedy, for a policy that must know each workspace before the iteration.
KernelChoice ReadFixedKernelChoice(Params& params);

// One kernel for each slot of the op, on its whole batch.
KernelPlan ChooseByRule(KernelChoice rule, const PolicyContext& context, OpId op);

// For each slot of the op the fastest kernel whose workspace is at most `limit`, on its whole
// batch; the one with the least workspace where none is.
KernelPlan ChooseWithin(Bytes limit, const PolicyContext& context, OpId op);

// The workspace that `ChooseByRule` asks for. REQUIRES: rule is not kGreedy.
Bytes WorkspaceByRule(KernelChoice rule, const PolicyContext& context, OpId op);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
