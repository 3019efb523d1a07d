// Kernel times at a batch between two recorded batches, for the same network on the same GPU.
//
// The time and the workspace of a kernel lie on the line between the nearest recorded batches below
// and above, including micro-batches. A kernel that only one of the two batches has is not offered.
// The times are good, because they are nearly linear; workspaces of FFT are up to a third too
// large.

#ifndef SPILLWAY_SIM_COST_INTERPOLATED_H_
#define SPILLWAY_SIM_COST_INTERPOLATED_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/cost_table.h"
#include "sim/core/device.h"
#include "sim/cost/table_cost.h"

namespace spillway::sim {

// A table and the batch for which it was recorded.
struct BatchTable {
  int64_t batch = 1;
  CostTable table;
};

// Returns the table of a batch, made from the tables of a smaller and a larger batch. Entries
// recorded at that batch or below are unchanged. Returns nullopt if the tables differ in gpu, cudnn
// or math. REQUIRES: below.batch < batch < above.batch.
std::optional<CostTable> Interpolate(const BatchTable& below, const BatchTable& above,
                                     int64_t batch);

// Serves an interpolated table and says so in its provenance. It is immutable, so safe to use from
// several threads.
class InterpolatedCostModel final : public CostModel {
 public:
  // `note` precedes the provenance: "interpolated between the batches 64 and 128".
  InterpolatedCostModel(CostTable table, const Device& device, std::string note)
      : model_(std::move(table), device), note_(std::move(note)) {}

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override {
    return model_.Batches(op, slot);
  }
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override {
    return model_.Kernels(op, slot, batch);
  }
  Duration CopyTime(Direction direction, Bytes size) const override {
    return model_.CopyTime(direction, size);
  }
  std::string Provenance() const override { return note_ + ", " + model_.Provenance(); }
  std::string ArithmeticFor(const Trace& trace) const override {
    return model_.ArithmeticFor(trace);
  }

 private:
  const TableCostModel model_;
  const std::string note_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_INTERPOLATED_H_
