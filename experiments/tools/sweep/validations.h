// Validates the cells of a grid one after the other: predicts and measures each cell.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/tools/measure/validation.h"
#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/result_store.h"
#include "experiments/tools/sweep/sweep.h"

namespace spillway::lab {

struct ValidationRun {
  std::string options;  // the options of all cells, as arguments of `spillway validate`
  std::string machine;  // the machine; results of another machine are not reused
  std::string program;  // version and commit
  // Measures the cell with the number `i` of the grid. Consecutive cells of the same workload get
  // the same `trace` object.
  std::function<ValidationResult(uint64_t i, const Case& cell,
                                 const std::shared_ptr<const Trace>& trace)>
      measure;
  // Called with each row. `found` is true if the row was in the store, false if it was measured
  // now.
  std::function<void(const Case& cell, const ResultRow& row, bool found)> finished;
};

// Validates the cells of a shard of the grid. `store` may be null. Cells that the store has are not
// measured. Each new row is in the store before the next cell begins, and remains there after an
// error. Throws the errors of `measure` with the command of the cell. REQUIRES: the store, if any,
// is of `ValidationKind`.
void RunValidations(const Grid& grid, const Shard& shard, SweepStore* store,
                    const ValidationRun& run);

// Returns true iff the prediction in a row of `ValidationKind` agrees with the measurement: times
// within `tolerance` (0.05 is 5 %), decisions, placements and order. Also returns true if the
// workload was predicted not to fit.
bool Agrees(const ResultRow& row, double tolerance);
// Returns how the policy failed, "alexnet:8: policy 'x' crashed", or nullopt if it did not.
std::optional<std::string> FailureOf(const ResultRow& row);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_
