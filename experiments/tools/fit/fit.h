// Finds out if a workload fits on a device under PyTorch's allocator, and which changes make it
// fit.
//
// A workload is first run unchanged: with the recorded lifetimes if the trace has a recording, else
// with each tensor held until its last use. A run with unlimited memory gives the peaks. A second
// run in the available memory gives the verdict. A change that a user of PyTorch can make is
// predicted in the same way. A policy of research is run in the available memory only.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_

#include <functional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/tools/fit/fit_row.h"
#include "experiments/tools/fit/question.h"

namespace spillway::lab {

struct Fit {
  FitRow as_it_is;               // the unchanged workload
  std::vector<FitRow> changes;   // least slowdown first; empty if the unchanged workload fits
  std::vector<FitRow> misses;    // changes in PyTorch that help, and with which it does not fit
  std::vector<FitRow> failures;  // policies of research that failed
  // Sentences on changes that could not be predicted, and on what changes do besides.
  std::vector<std::string> not_tried;
};

// Returns one `Fit` for each question; all are about one device. A smaller batch of the same
// network in another question counts as a change. Calls `progress` before each question. Throws
// `UsageError` if a policy is unknown. Throws `PolicyError` if a workload does not run in unlimited
// memory.
std::vector<Fit> FindFits(const std::vector<Question>& questions, const FitOptions& options,
                          const std::function<void(const Question&)>& progress);

// Returns one row per workload and device, each followed by the rows of its changes, misses and
// failures.
std::vector<FitRow> RowsOf(const std::vector<Fit>& fits);
Columns<FitRow> FitColumns();

// Returns a text for people: a table of the verdicts, then the changes for each workload that does
// not fit, then the memory peak of each workload. Tables have at most `width` characters per line,
// or any number if it is 0.
std::string FormatFits(const std::vector<Fit>& fits, size_t width);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIT_H_
