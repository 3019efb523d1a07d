// Searches for the largest batch, or the largest length, with which a workload fits on a device.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_LARGEST_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_LARGEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/changes/other_batch.h"
#include "experiments/output/columns.h"
#include "experiments/tools/fit/fit_row.h"
#include "experiments/tools/fit/question.h"

namespace spillway::lab {

// The largest value that the search tries.
inline constexpr int64_t kLargestValue = 1 << 20;

struct Largest {
  StepQuantity quantity = StepQuantity::kBatch;
  int64_t value = 0;  // fits, while the next value does not; 0 if 1 does not fit
  FitRow row;         // at `value`, or at 1
  // At the value after `value`; nullopt if `value` is `kLargestValue`.
  std::optional<FitRow> next;
};

// Returns the result of the unchanged workload on the device, and then those of the changes in
// PyTorch, the largest value first. The question is about one of the steps of the family. Does not
// say that no larger value fits: memory may be less fragmented there. Throws as `FindFits` does.
std::vector<Largest> FindLargest(const Question& one, const StepFamily& family,
                                 const FitOptions& options);

Columns<Largest> LargestColumns();

// Returns a table for people of the results of workloads on devices.
std::string FormatLargest(const std::vector<Largest>& results, size_t width);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_LARGEST_H_
