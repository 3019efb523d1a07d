// The arguments of a verb that runs the cells of a grid: GRID... and an option for each list and
// flag of an experiment. Also formats the rows of the cells.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_

#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/result_store.h"

namespace spillway::cli {

struct GridOption {
  std::vector<std::string> given;  // workloads, and at most one experiment file
  Experiment options;
  std::string shard = "1/1";

  // Adds all arguments except -o.
  void Add(Command& verb);
  // Returns the experiment. Options take precedence over the experiment file. Throws `UsageError`
  // if several files are given, and the errors of `ReadExperiment`.
  Experiment Load() const;
};

// Prints a remark if the experiment trains under policies that are made for inference.
void RemarkTraining(const Experiment& experiment, const Session& session);

// Returns the rows of a store in the chosen format.
std::string FormatRows(const StoreKind& kind, const std::vector<ResultRow>& rows,
                       const FormatOption& format);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_OPTION_H_
