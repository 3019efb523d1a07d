// The kernels that the policy chose for an op, checked, with their time and workspace.
//
// It makes no call to the policy, and remembers only the current op and the kernel before it. The
// runtime owns it and reuses it for each op to save allocations.

#ifndef SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_
#define SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_

#include <span>

#include "sim/core/cost_model.h"
#include "sim/core/policy.h"
#include "sim/runtime/op_facts.h"
#include "traces/liveness.h"

namespace spillway::sim {

class CheckedPlan {
 public:
  // The arguments outlive the plan.
  CheckedPlan(const Trace& trace, const Liveness& liveness, const OpTable& ops,
              const CostModel& cost)
      : trace_(trace), liveness_(liveness), ops_(ops), cost_(cost) {}

  // Takes a policy's plan for an op. An empty plan stands for the fastest kernel of each slot on
  // the whole batch. Throws `PolicyError` unless the plan covers every slot, in order, with the
  // whole batch.
  void Take(OpId op, KernelPlan plan);

  // Forgets the last kernel: the next kernel is the first one of an iteration.
  void BeginIteration() { last_ = {}; }

  std::span<const KernelRun> runs() const { return runs_; }
  Duration time() const { return time_; }         // sum of all runs
  Bytes workspace() const { return workspace_; }  // the largest of all runs

 private:
  struct Taken {
    OpId op{};
    uint32_t slot = 0;
    const Kernel* kernel = nullptr;
  };

  void Add(OpId op, uint32_t slot, const Kernel& kernel);
  // Returns true if the kernel finds its code and data in the caches, because the run before it had
  // the same algorithm and slot in the same op or an op that is `Alike`.
  bool IsWarm(const Taken& next) const;

  const Trace& trace_;
  const Liveness& liveness_;
  const OpTable& ops_;
  const CostModel& cost_;
  KernelPlan runs_;
  Duration time_;
  Bytes workspace_;
  Taken last_;  // the run before; its kernel is null at the start of an iteration
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_
