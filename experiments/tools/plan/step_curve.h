// Plans for a recorded step that its program carries out: one within a budget, and many between the
// least memory of any plan and the memory of the step as it is.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_CURVE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_CURVE_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "policies/recorded/step_plan.h"
#include "policies/recorded/step_search.h"
#include "traces/base/units.h"

namespace spillway::lab {

// The least memory that any plan needs, and the op that needs it. All optimizer state that can be
// on the host is there.
struct StepFloor {
  Bytes size;
  OpId op{};
  Bytes throughout;            // the part of `size` that exists during the whole step
  Bytes state;                 // what is on the host, and would exist during the whole step
  Bytes gradients;             // the part that backward made before, and that stays after the step
  std::vector<TensorId> held;  // the other storages of that moment, the largest first
  // The floor if no op of this kind needed more than ops of other kinds do, and the op that then
  // holds it; nullopt if the step has no other op.
  std::optional<std::pair<Bytes, OpId>> without;
};

// One plan and what it is predicted to take.
struct PlannedStep {
  Bytes memory;  // the budget
  StepPlan plan;
  StepPrediction prediction;
  Bytes best;  // if no plan fits, the least memory with which one was found; otherwise 0

  bool fits() const { return best == Bytes(0); }
};

class StepPlanner {
 public:
  // Plans the step of `asked.workload`, or the one that is given. If `all_state`, plans have all
  // optimizer state on the host that can be there. Throws `InputError` if the trace has no hooks,
  // and the errors of `Inputs`.
  explicit StepPlanner(const Case& asked, std::shared_ptr<const Trace> given = nullptr,
                       bool all_state = false);

  const Trace& trace() const { return *inputs_.trace(); }
  // Returns the case that is planned. REQUIRES: the planner outlives the result.
  LoadedCase loaded() const { return {asked_, Borrow(inputs_)}; }
  const StepPlaces& places() const { return places_; }
  const StepFloor& floor() const { return floor_; }
  Bytes eager_peak() const { return eager_.metrics.peak_allocated; }

  // Returns the plan of `asked.policy` within `memory` bytes, or within each of the budgets. It
  // leaves a little of the memory free, because a GPU's allocator does not place the blocks of all
  // steps alike. If the budget suffices without a plan, the plan is empty. `joint` stands for
  // `SearchSteps`. With more memory there is never a slower plan, or none. Of the optimizer state
  // that can be on the host, as many tensors are there as makes the step fastest. Throws the errors
  // of the policy.
  PlannedStep In(Bytes memory) const;
  std::vector<PlannedStep> In(std::span<const Bytes> budgets) const;
  // Returns the policy that follows a plan of the step. REQUIRES: both outlive the result.
  PolicyChoice Following(const StepPlan& plan) const;
  // Carries a given plan out, which need not fit.
  PlannedStep Predicted(const StepPlan& plan, Bytes memory) const;
  // Returns plans for the floor and for the step as it is, and for shares of the way between them.
  std::vector<PlannedStep> Curve() const;

  // Returns the plan as `FormatStepPlan` does.
  std::string Format(const PlannedStep& planned) const;

 private:
  // Returns the part of a budget that a plan may take, which is not less than the floor.
  Bytes AimOf(Bytes memory, Bytes floor) const;
  // Returns a memory, at most that of the step as it is, of which a plan with this peak may be.
  Bytes MemoryFor(Bytes peak) const;
  // Returns what the policy decides with the memory.
  PlannedStep Tried(Bytes memory) const;
  // Returns the plans of the policy for budgets that do not depend on the one that is asked for,
  // and the fastest of them in `memory`. So more memory never has a slower plan, or none.
  std::vector<PlannedStep> OfPolicy() const;
  PlannedStep FastestOf(std::span<const PlannedStep> tried, Bytes memory) const;
  // Return the rungs of the search in at most `memory`, and what the highest of them in `memory`
  // has.
  std::vector<StepRung> RungsTo(Bytes memory) const;
  PlannedStep OnRung(std::span<const StepRung> rungs, Bytes memory) const;
  // Returns the fastest step in `memory` with some optimizer state on the host; `plan_in` returns
  // what a memory has where all state is on the device.
  template <typename PlanIn>
  PlannedStep WithState(Bytes memory, const PlanIn& plan_in) const;
  StepPrediction PredictionOf(const Report& report) const;

  const Inputs inputs_;
  const Case asked_;
  const Liveness liveness_;
  const StepPlaces places_;
  const bool all_state_;
  const Bytes least_;  // the floor if all state is on the device
  StepFloor floor_;
  Report eager_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_CURVE_H_
