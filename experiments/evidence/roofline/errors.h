// How far the analytic cost model is from recorded tables: the errors per algorithm and per
// iteration, and the efficiencies that make them least.

#ifndef SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_
#define SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway {

// One recorded kernel and the operation that it executes.
struct Sample {
  Op op;
  size_t slot = 0;
  int64_t batch = 1;
  std::string key;  // an `Device::efficiency` key: "fwd.fft", "linear.fwd"; see `EfficiencyKeyOf`
  Kernel recorded;
};

// The key under which the error of a kernel is reported: SLOT.ALGORITHM for a convolution, else the
// operation's name in its signature ("relu.bwd").
std::string ErrorKeyOf(const Op& op, size_t slot, const std::string& algorithm);

// The kernels in the tables of `workloads` for `device`, each signature, batch and algorithm once,
// in the order of the workloads. Throws `InputError` for a workload without a table.
std::vector<Sample> RecordedSamples(const std::vector<std::string>& workloads,
                                    const std::string& device);

// Workloads with a table for `device`, sorted by name: "vgg16:64". Not of batch 1: those are of
// inferences, and mostly of slices that take microseconds.
std::vector<std::string> RecordedWorkloads(const std::string& device);

// Absolute logarithms of predicted over recorded: 0.1 is a tenth too much or too little.
struct ErrorSummary {
  size_t samples = 0;
  size_t missing = 0;  // recorded but not offered by the model
  double time_median = 0;
  double time_p90 = 0;
  // Of the samples with a recorded or predicted workspace of at least 1 MiB, each taken as at least
  // 1 MiB.
  size_t workspaces = 0;
  size_t exact = 0;  // workspaces, of all samples, that are equal to the byte
  double workspace_median = 0;
  double workspace_p90 = 0;
};

std::map<std::string, ErrorSummary> SummarizeErrors(const std::vector<Sample>& samples,
                                                    const CostModel& model);

// Compute time of one iteration with the fastest algorithms, unlimited memory and nothing moved.
Duration FastestIteration(const Trace& trace, const CostModel& cost);

// `device` with the efficiency of each key in `samples` that it lists set to the one whose mean
// absolute log error of time is least, to three digits.
Device FitEfficiencies(const Device& device, const std::vector<Sample>& samples);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_
