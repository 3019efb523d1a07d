// GRID... of a verb that runs the cells of a grid, with an option for each list and flag of an
// experiment, and the table of their rows.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_

#include <string>
#include <vector>

#include "experiments/cli/frame/options.h"
#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/result_store.h"

namespace spillway::cli {

struct GridOption {
  std::vector<std::string> given;  // workloads, and an experiment file at most
  Experiment options;
  std::string shard = "1/1";

  // All but -o.
  void Add(Command& verb);
  // With what the file says where an option does not.
  Experiment Load() const;
};

// Rows of a store in the chosen format.
std::string FormatRows(const StoreKind& kind, const std::vector<ResultRow>& rows,
                       const FormatOption& format);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_
