// Kernel times at a batch between two that were recorded, of the same network on the same GPU.
//
// A kernel takes what lies on the line between the nearest recorded batches below and above, among
// them micro-batches; its workspace likewise. What only one of the two has is not offered. Good for
// times, which are nearly linear; workspaces of FFT come out up to a third too large.

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

namespace spillway {

// A table and the batch that it is of.
struct BatchTable {
  int64_t batch = 1;
  CostTable table;
};

// The table of a batch from those of a smaller and a larger one. What is recorded at that batch or
// below stays as it is. nullopt if the tables differ in gpu, cudnn or math. REQUIRES: below.batch <
// batch < above.batch.
std::optional<CostTable> Interpolate(const BatchTable& below, const BatchTable& above,
                                     int64_t batch);

// Serves such a table, and says so. Immutable, so safe to use from several threads.
class InterpolatedCostModel final : public CostModel {
 public:
  // `note` stands before the provenance: "interpolated between the batches 64 and 128".
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

 private:
  const TableCostModel model_;
  const std::string note_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_INTERPOLATED_H_
