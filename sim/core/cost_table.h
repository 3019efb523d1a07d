// Recorded costs as plain data. A recorder measures them, and `TableCostModel` serves them.

#ifndef SPILLWAY_SIM_CORE_COST_TABLE_H_
#define SPILLWAY_SIM_CORE_COST_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/cost_model.h"

namespace spillway::sim {

// One measured way to execute a slot. `kernel.time` is the median over the repeats.
struct RecordedKernel {
  Kernel kernel;
  int repeats = 0;
  double spread = 0;  // (90th percentile - 10th percentile) / median of the repeats

  bool operator==(const RecordedKernel&) const = default;
};

// All candidates of one operation at one batch size.
struct CostEntry {
  std::string signature;  // see `Slot::signature`
  int64_t batch = 1;
  std::vector<RecordedKernel> kernels;

  bool operator==(const CostEntry&) const = default;
};

// The machine and time of a recording, as plain strings. Tables that differ in `gpu`, `cudnn` or
// `math` cannot be combined in one cost model.
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
  // The time that a kernel takes in a sequence of different kernels in addition to its time alone;
  // 0 if not measured.
  Duration in_sequence = {};
  std::vector<CostEntry> entries;  // sorted by signature, then batch

  bool operator==(const CostTable&) const = default;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_COST_TABLE_H_
