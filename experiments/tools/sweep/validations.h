// Validations of the cells of a grid: each predicted and measured, one after the other.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "experiments/tools/measure/validation.h"
#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/result_store.h"
#include "experiments/tools/sweep/sweep.h"

namespace spillway {

struct ValidationRun {
  std::string options;  // of all cells, as arguments of `spillway validate`
  std::string machine;  // that measures: another one measures everything anew
  std::string program;  // version and commit
  // `trace` is the same object as long as the workload is.
  std::function<ValidationResult(const Cell& cell, const std::shared_ptr<const Trace>& trace)>
      measure;
  // A row is known: measured now, or found in the store.
  std::function<void(const Cell& cell, const ResultRow& row, bool found)> finished;
};

// The rows of a shard of the grid. With a store, what that has is not measured, and what is
// measured is in it before the next cell begins. Throws as `measure`, with the cell; what has been
// measured is in the store then. REQUIRES: the store, if any, is of `ValidationKind`.
void RunValidations(const Grid& grid, const Shard& shard, SweepStore* store,
                    const ValidationRun& run);

// True if a row of `ValidationKind` says that the times agree within `tolerance` (0.05 is 5 %) and
// that decisions, placements and order do, or that the workload was predicted not to fit.
bool Agrees(const ResultRow& row, double tolerance);
// True if it says that the policy broke down.
bool HasFailed(const ResultRow& row);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_VALIDATIONS_H_
