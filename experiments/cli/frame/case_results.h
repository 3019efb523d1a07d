// The results of cases, and their text.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_RESULTS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_RESULTS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/format_option.h"
#include "experiments/output/run_result.h"
#include "experiments/run/inputs.h"

namespace spillway::cli {

// Results of policies for one case, whose own policy does not matter.
struct CaseResults {
  LoadedCase loaded;
  std::vector<RunResult> results;
};

// Returns the results in the chosen format. A table format has one table for each case.
std::string FormatResults(std::span<const CaseResults> groups, const FormatOption& format);

// Returns the remark of --check if the checker found no violation in `what`.
std::string CheckedRemark(std::string_view what);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_RESULTS_H_
