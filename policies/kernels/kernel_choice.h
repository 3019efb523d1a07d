// The ways in which the policies of the literature choose convolution algorithms.

#ifndef SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
#define SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_

#include <memory>
#include <optional>
#include <vector>

#include "policies/kernels/micro_batch.h"
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

// Chooses kernels for ops, on the whole batch or on micro-batches. Copies share what has been found
// out. For one run, or several with the same cost model.
class KernelChooser {
 public:
  // On the whole batch.
  KernelChooser() = default;
  explicit KernelChooser(MicroBatches batches)
      : fronts_(std::make_shared<DivisionFronts>(batches)) {}

  // nullopt: on the whole batch.
  std::optional<MicroBatches> batches() const {
    return fronts_ ? std::optional(fronts_->batches()) : std::nullopt;
  }

  // For each slot of the op what the rule says. Micro-batches are divided with the workspace that
  // the rule grants: any; that of the kernel with the least on the whole batch; what is free.
  KernelPlan ByRule(KernelChoice rule, const PolicyContext& context, OpId op) const;

  // For each slot of the op the fastest way whose workspace is at most `limit`; the one with the
  // least workspace where none is.
  KernelPlan Within(Bytes limit, const PolicyContext& context, OpId op) const;

  // Every way to run an op that is faster than all that need no more workspace, by workspace.
  std::vector<KernelPlan> Ways(const CostModel& cost, const Op& op) const;

 private:
  std::shared_ptr<DivisionFronts> fronts_;  // nullptr: on the whole batch
};

// Declares the parameter "micro" with the values off, undivided, powerOfTwo and all.
KernelChooser ReadKernelChooser(Params& params);

// The workspace and the time of a plan for the op.
Bytes WorkspaceOf(const KernelPlan& plan, const PolicyContext& context, OpId op);
Duration TimeOf(const KernelPlan& plan, const PolicyContext& context, OpId op);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
