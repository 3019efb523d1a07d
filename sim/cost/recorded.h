// The costs of a recorded trace: the measured times of its ops.
//
// On another GPU, the time of an op is scaled by the ratio of the rooflines of the two GPUs, as far
// as it does not exceed the roofline; what exceeds it is scaled by the rates at which they issue
// instructions. A trace recorded without a GPU gets the times of the roofline, unless a table of
// operators has given it times (operator_table.h). A collective has the time of the device's links
// (collective.h), or none if these are not known. An op has one kernel, without choice, on its
// whole batch.

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

namespace spillway::sim {

class RecordedCostModel final : public CostModel {
 public:
  // `recorded_on` is the device of the recording, if it is known. `source` says where the times
  // come from; if it is empty, they were recorded.
  RecordedCostModel(const Recording& recording, const Device& device,
                    const std::optional<Device>& recorded_on, std::string source = "");

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override;
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override { return provenance_; }

 private:
  const RooflineCostModel here_;
  const std::optional<Cluster> cluster_;
  std::optional<RooflineCostModel> there_;  // the recording's GPU; empty without scaling
  double slower_ = 1;  // how many times as fast the recording's GPU issues instructions
  bool timed_ = true;  // true if the recording has times
  std::string provenance_;
  mutable std::mutex mutex_;
  // By time and workspace. A map is node-based, so the spans stay valid.
  mutable std::map<std::pair<Duration, Bytes>, Kernel> known_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_RECORDED_H_
