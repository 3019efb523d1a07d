// Recorded costs as plain data: what a recorder measures and a table cost model serves.

#ifndef SPILLWAY_SIM_CORE_COST_TABLE_H_
#define SPILLWAY_SIM_CORE_COST_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/cost_model.h"

namespace spillway {

// One measured way to execute a slot. `kernel.time` is the median over the repeats.
struct RecordedKernel {
  Kernel kernel;
  int repeats = 0;
  double spread = 0;  // (90th percentile - 10th percentile) / median of the repeats

  bool operator==(const RecordedKernel&) const = default;
};

// All the candidates of one operation at one batch size.
struct CostEntry {
  std::string signature;  // as in `Slot::signature`
  int64_t batch = 1;
  std::vector<RecordedKernel> kernels;

  bool operator==(const CostEntry&) const = default;
};

// Where a table was recorded. Plain strings, except that a table is refused for another `math`.
struct Provenance {
  std::string gpu;
  std::string driver;
  std::string cuda;
  std::string cudnn;
  std::string math;  // "fp32" (fused multiply-add, no TF32) or "tf32"
  std::string date;  // ISO 8601, UTC
  std::string tool;  // "spillway 0.1.0"

  bool operator==(const Provenance&) const = default;
};

struct CostTable {
  std::string workload;  // "vgg19:256"
  Provenance provenance;
  // What a kernel takes in a sequence of different ones beyond its time alone; 0 if not measured.
  Duration in_sequence = {};
  std::vector<CostEntry> entries;  // sorted by signature, then batch

  bool operator==(const CostTable&) const = default;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_COST_TABLE_H_
