// An analytic cost model: each kernel is bound by arithmetic or by memory traffic.
//
// There are three generations, selected by the device's `library`. From cuDNN 5 on, times follow
// kernel_time.h, and those of transformers sequence_time.h, whose efficiencies count the operations
// that an algorithm does. For earlier
// versions and other names, time = max(flops / (peak * efficiency of the algorithm), traffic / DRAM
// bandwidth) + a fixed start-up, and efficiencies count the operations of a direct computation.
// Workspaces follow conv_workspace.h; from cuDNN 8 on they are the workspaces of cuDNN 9.
//
// The model offers the convolution algorithms that the device's library has and that apply to the
// geometry. It is meant for networks that have not been recorded and for devices that are not
// available; a recorded table is better.

#ifndef SPILLWAY_SIM_COST_ROOFLINE_H_
#define SPILLWAY_SIM_COST_ROOFLINE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/cost/conv_workspace.h"

namespace spillway::sim {

class RooflineCostModel final : public CostModel {
 public:
  explicit RooflineCostModel(const Device& device)
      : device_(device), library_(LibraryMajor(device.library)) {}

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override;
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override;

 private:
  std::vector<Kernel> Candidates(const Op& op, const Slot& slot, int64_t batch) const;
  // `algorithm` is "default" for every op but convolutions.
  Duration TimeOf(const Op& op, const Slot& slot, int64_t batch, const std::string& algorithm,
                  Bytes workspace) const;
  Duration DirectTime(const Op& op, const Slot& slot, int64_t batch, double efficiency,
                      Bytes workspace) const;

  // The values that determine the candidates: signature, FLOPs, traffic and arithmetic of a slot,
  // the batch of its op, and the batch. Slots of one signature differ in traffic if one slot
  // accumulates.
  using Key = std::tuple<std::string, int64_t, Bytes, Arithmetic, int64_t, int64_t>;

  const Device device_;
  const int library_;  // major version of cuDNN; 0 for another library
  mutable std::mutex mutex_;
  mutable std::map<Key, std::vector<Kernel>> known_;  // node-based, so the spans stay valid
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_ROOFLINE_H_
