// Plans of one recorded step for several sizes of its inputs, within one budget.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_LADDER_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_LADDER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/case.h"
#include "experiments/tools/plan/step_curve.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::lab {

// The numbers of a recorded step whose inputs have other sizes (`sizes` in traces/FORMAT.md).
struct StepSize {
  struct Cost {
    Duration time;
    Bytes workspace;

    bool operator==(const Cost&) const = default;
  };

  std::string name;            // "512"
  std::vector<Bytes> tensors;  // by tensor
  std::vector<Cost> ops;       // by op
  std::vector<Cost> again;     // by op that has `RecordedCost::again`
};

// Returns the sizes that the file of `trace` knows; `origin` is its path in messages. Throws
// `InputError` with the place of the error if they do not belong to the trace.
std::vector<StepSize> ParseStepSizes(std::string_view text, const std::string& origin,
                                     const Trace& trace);
// Returns true iff no number of `smaller` is larger than that of `larger`.
bool Covers(const StepSize& larger, const StepSize& smaller);

class StepLadder {
 public:
  // A size and the step that has it.
  struct Rung {
    StepSize size;
    std::unique_ptr<StepPlanner> planner;
  };

  // `names` has the names of sizes between commas, or is "all". Throws `UsageError` with the sizes
  // that there are for another name, and the errors of `StepPlanner` and `ParseStepSizes`.
  StepLadder(const Case& asked, std::string_view names);

  // The step of the file, at the size at which it was recorded.
  const StepPlanner& recorded() const { return recorded_; }
  // The steps, those that take less memory first.
  const std::vector<Rung>& rungs() const { return rungs_; }

  // Returns a plan for each rung in `memory`: the one that the policy finds, or, if a rung that
  // covers it has a faster one, that rung's. So a rung never takes longer than one that covers it,
  // and has a plan if that one has one. If that rung's plan is predicted to take longer on this
  // one, the prediction is that rung's.
  std::vector<PlannedStep> In(Bytes memory) const;

 private:
  const StepPlanner recorded_;
  std::vector<Rung> rungs_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_PLAN_STEP_LADDER_H_
