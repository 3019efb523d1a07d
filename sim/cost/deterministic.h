// A cost model without the kernels that give different bits from run to run.

#ifndef SPILLWAY_SIM_COST_DETERMINISTIC_H_
#define SPILLWAY_SIM_COST_DETERMINISTIC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/cost_model.h"

namespace spillway::sim {

// Serves the kernels of another model, in the same order, except the kernels whose `deterministic`
// is false. `Kernels` throws `InputError` if no kernel is left. Safe to use from several threads.
class DeterministicCostModel final : public CostModel {
 public:
  explicit DeterministicCostModel(std::unique_ptr<const CostModel> model)
      : model_(std::move(model)) {}

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override;
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override;
  std::string ArithmeticFor(const Trace& trace) const override {
    return model_->ArithmeticFor(trace);
  }

 private:
  std::unique_ptr<const CostModel> model_;
  mutable std::mutex mutex_;
  mutable std::map<const Kernel*, std::vector<Kernel>> kept_;  // by the model's first kernel
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_DETERMINISTIC_H_
