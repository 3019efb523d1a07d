// The ways in which the policies of the literature choose convolution algorithms.

#ifndef SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
#define SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_

#include <memory>
#include <optional>
#include <vector>

#include "policies/kernels/micro_batch.h"
#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway::policies {

enum class KernelChoice : uint8_t {
  kPerformance,  // the fastest, whatever workspace it needs
  kMemory,       // the one with the least workspace; of several, the fastest
  kGreedy,       // the fastest whose workspace fits in the largest free block right now
};

// Declares the parameter "algo" with the values memory, performance and greedy.
KernelChoice ReadKernelChoice(Params& params);

// Declares the parameter "algo" with the values memory and performance, for a policy that must know
// each workspace before the iteration.
KernelChoice ReadFixedKernelChoice(Params& params);

// A `KernelChooser` chooses kernels for ops, on the whole batch or on micro-batches. Copies of a
// chooser share a cache. REQUIRES: all calls have the same cost model.
class KernelChooser {
 public:
  // Chooses kernels on the whole batch.
  KernelChooser() = default;
  explicit KernelChooser(MicroBatches batches)
      : fronts_(std::make_shared<DivisionFronts>(batches)) {}

  // Returns nullopt if kernels run on the whole batch.
  std::optional<MicroBatches> batches() const {
    return fronts_ ? std::optional(fronts_->batches()) : std::nullopt;
  }

  // Returns the kernel of each slot by the rule. Micro-batches are chosen within the workspace that
  // the rule grants: any for kPerformance, the least of any kernel on the whole batch for kMemory,
  // and the largest free block for kGreedy.
  KernelPlan ByRule(KernelChoice rule, const PolicyContext& context, OpId op) const;

  // Returns for each slot of the op the fastest way to run it whose workspace is at most `limit`,
  // or the way with the least workspace if none is within the limit.
  KernelPlan Within(Bytes limit, const PolicyContext& context, OpId op) const;

  // Returns the ways to run an op in the order of their workspaces. Each way is faster than all
  // ways that need no more workspace.
  std::vector<KernelPlan> Ways(const CostModel& cost, const Op& op) const;

 private:
  std::shared_ptr<DivisionFronts> fronts_;  // nullptr: kernels run on the whole batch
};

// Declares the parameter "micro" with the values off, undivided, powerOfTwo and all.
KernelChooser ReadKernelChooser(Params& params);

// Return the workspace and the time of a plan for the op.
Bytes WorkspaceOf(const KernelPlan& plan, const PolicyContext& context, OpId op);
Duration TimeOf(const KernelPlan& plan, const PolicyContext& context, OpId op);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_KERNELS_KERNEL_CHOICE_H_
