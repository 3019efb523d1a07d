// The decision and placement logs of a run as a file, and runs that repeat its choice of kernels.
//
// Two runs agree if their files are equal. A run on a GPU computes the same bits as another if both
// ran the same kernels, so an in-core run that repeats a policy's kernels is its reference.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_DECISIONS_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_DECISIONS_H_

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// JSON with the keys format ("spillway-decisions"), version, workload, decisions and placements, as
// experiments/schemas/decisions.json describes it. The same logs give the same bytes.
std::string FormatDecisions(const Trace& trace, const Report& report, const CostModel& cost);

// One part of an op as it was run.
struct KernelRecord {
  std::string slot;
  std::string algorithm;
  int64_t batch = 0;
};
// By op name, in the order run; ops that were run again count once.
using KernelRecords = std::map<std::string, std::vector<KernelRecord>, std::less<>>;

// Reads the kernels from a file of `FormatDecisions`, or from such text, for which `origin` stands
// in messages. Throws `InputError` of the form "path:line:column: element: message".
KernelRecords ReadKernelRecords(const std::filesystem::path& path);
KernelRecords ParseKernelRecords(std::string_view text, const std::string& origin);

// Keeps everything on the device and runs the recorded kernels.
class FixedKernels final : public Policy {
 public:
  explicit FixedKernels(KernelRecords records) : records_(std::move(records)) {}

  // Throws `InputError` that names the op if the record lacks it, or a kernel that the cost model
  // does not have.
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;

 private:
  const KernelRecords records_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_DECISIONS_H_
