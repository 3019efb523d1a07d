// Measures the errors of the analytic cost model against recorded tables, per algorithm and per
// iteration. Also finds the efficiencies that minimise the errors.

#ifndef SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_
#define SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

enum class RecordedKind : uint8_t { kImages, kTransformers };

// A `Sample` is one recorded kernel and the operation that it executes.
struct Sample {
  Op op;
  size_t slot = 0;
  int64_t batch = 1;
  std::string
      key;  // from `ErrorKeyOf`; may be a key of `Device::efficiency`: "fwd.fft", "linear.fwd"
  Kernel recorded;
};

// Returns the key under which the error of a kernel is reported: SLOT.ALGORITHM for a convolution,
// `SequenceKey` for products of transformers, else the operation's name in its signature
// ("relu.bwd"), followed by " bf16" if it is in bfloat16.
std::string ErrorKeyOf(const Device& device, const Op& op, size_t slot,
                       const std::string& algorithm);

// Returns the kernels in the tables of `workloads` for `device`, in the order of the workloads.
// Each signature, batch and algorithm occurs once. Of an op other than a convolution, only the
// fastest kernel counts, as the algorithm "default". Throws `InputError` if a workload has no
// table.
std::vector<Sample> RecordedSamples(const std::vector<std::string>& workloads,
                                    const std::string& device,
                                    RecordedKind kind = RecordedKind::kImages);

// Returns the workloads with a table for `device`, sorted by name: those with convolutions in fp32,
// such as "vgg16:64", or all others, such as "gpt2@512:8,optimizer=adamw,precision=bf16". Tables of
// batch 1 are left out: they are for inference, and most of their entries are slices that take
// microseconds.
std::vector<std::string> RecordedWorkloads(const std::string& device,
                                           RecordedKind kind = RecordedKind::kImages);

// Returns the trace of a workload in its text form.
Trace LoadRecorded(const std::string& workload, const std::string& preset = "torch");

// An `ErrorSummary` holds quantiles of errors. An error is the absolute logarithm of predicted over
// recorded; 0.1 means about 10 % too much or too little.
struct ErrorSummary {
  size_t samples = 0;  // kernels that the model offers
  size_t missing = 0;  // recorded kernels that the model does not offer
  double time_median = 0;
  double time_p90 = 0;
  // The number of samples whose recorded or predicted workspace is at least 1 MiB. Errors of
  // workspaces are of these samples, with smaller workspaces counted as 1 MiB.
  size_t workspaces = 0;
  size_t exact = 0;  // samples whose predicted workspace equals the recorded one to the byte
  double workspace_median = 0;
  double workspace_p90 = 0;
};

// Returns the summary of the errors of the model for each key of the samples.
std::map<std::string, ErrorSummary> SummarizeErrors(const std::vector<Sample>& samples,
                                                    const CostModel& model);

// Returns the compute time of one iteration with the fastest algorithms, unlimited memory and no
// copies.
Duration FastestIteration(const Trace& trace, const CostModel& cost);

// Returns `device` with fitted efficiencies. For each key that occurs in `device` and in `samples`,
// the efficiency is the one with the least mean absolute log error of time, to three digits.
Device FitEfficiencies(const Device& device, const std::vector<Sample>& samples);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_EVIDENCE_ROOFLINE_ERRORS_H_
