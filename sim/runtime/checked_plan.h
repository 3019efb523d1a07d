// How an op is about to run: the kernels that the policy chose, checked, with their time and
// workspace.
//
// It asks nobody and remembers one op and the kernel before. Owned by the runtime, which keeps it
// from op to op to save allocations.

#ifndef SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_
#define SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_

#include <span>

#include "sim/core/cost_model.h"
#include "sim/core/policy.h"
#include "sim/runtime/op_facts.h"
#include "traces/liveness.h"

namespace spillway {

class CheckedPlan {
 public:
  // The arguments outlive the choice.
  CheckedPlan(const Trace& trace, const Liveness& liveness, const OpTable& ops,
              const CostModel& cost)
      : trace_(trace), liveness_(liveness), ops_(ops), cost_(cost) {}

  // Takes a policy's plan for an op; an empty one stands for the fastest kernel of each slot on the
  // whole batch. Throws `PolicyError` unless the plan covers each slot, in order, with the whole
  // batch.
  void Take(OpId op, KernelPlan plan);

  // What is taken next comes behind nothing.
  void BeginIteration() { last_ = {}; }

  std::span<const KernelRun> runs() const { return runs_; }
  Duration time() const { return time_; }         // of all runs, one after the other
  Bytes workspace() const { return workspace_; }  // the largest of all runs

 private:
  struct Taken {
    OpId op{};
    uint32_t slot = 0;
    const Kernel* kernel = nullptr;
  };

  void Add(OpId op, uint32_t slot, const Kernel& kernel);
  // Whether what comes behind the last run finds its code and data in the caches.
  bool IsWarm(const Taken& next) const;

  const Trace& trace_;
  const Liveness& liveness_;
  const OpTable& ops_;
  const CostModel& cost_;
  KernelPlan runs_;
  Duration time_;
  Bytes workspace_;
  Taken last_;  // the run before, if any
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_CHECKED_PLAN_H_
