// The costs of a recorded trace: what its ops were measured to take where they ran.
//
// On another GPU an op takes as many times longer as the rooflines of the two say. What was
// recorded without a GPU has the roofline's times. An op is one kernel without choice, on its whole
// batch.

#ifndef SPILLWAY_SIM_COST_RECORDED_H_
#define SPILLWAY_SIM_COST_RECORDED_H_

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/cost/roofline.h"
#include "traces/trace.h"

namespace spillway {

class RecordedCostModel final : public CostModel {
 public:
  // `recorded_on`: the device of the recording, if it is known.
  RecordedCostModel(const Recording& recording, const Device& device,
                    const std::optional<Device>& recorded_on);

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override;
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override { return provenance_; }

 private:
  const RooflineCostModel here_;
  std::optional<RooflineCostModel> there_;  // to scale from; not the roofline's own times
  bool timed_ = true;                       // whether the recording has times
  std::string provenance_;
  mutable std::mutex mutex_;
  // By time and workspace. Node-based, so spans stay valid.
  mutable std::map<std::pair<Duration, Bytes>, Kernel> known_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_RECORDED_H_
