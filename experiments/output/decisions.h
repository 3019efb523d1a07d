// Writes the decision and placement logs of a run to a file, and repeats its choice of kernels in
// other runs.
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

namespace spillway::lab {

// Returns a JSON document with the keys format ("spillway-decisions"), version, workload, decisions
// and placements. experiments/schemas/decisions.json describes it. Equal logs give equal bytes.
std::string FormatDecisions(const Trace& trace, const Report& report, const CostModel& cost);

// A kernel that ran for one slot of an op, on a part of the batch.
struct KernelRecord {
  std::string slot;
  std::string algorithm;
  int64_t batch = 0;
};
// Kernels by the name of their op, in the order in which they ran. If an op ran again, only the
// kernels of its first run count.
using KernelRecords = std::map<std::string, std::vector<KernelRecord>, std::less<>>;

// Reads the kernels from a file that `FormatDecisions` wrote. Throws `InputError` of the form
// "path:line:column: element: message".
KernelRecords ReadKernelRecords(const std::filesystem::path& path);
// Parses the text of such a file. `origin` stands for the path in error messages.
KernelRecords ParseKernelRecords(std::string_view text, const std::string& origin);

// A policy that keeps every tensor on the device and runs the recorded kernels.
class FixedKernels final : public Policy {
 public:
  explicit FixedKernels(KernelRecords records) : records_(std::move(records)) {}

  // Throws an `InputError` that names the op if the record lacks the op, or if it has a kernel that
  // the cost model lacks.
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;

 private:
  const KernelRecords records_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_DECISIONS_H_
