// An analytic cost model: each kernel is bound by arithmetic or by memory traffic.
//
// time = max(flops / (peak * efficiency of the algorithm), traffic / DRAM bandwidth) + a fixed
// start-up. The convolution algorithms offered are those that the device's library has and that
// apply to the geometry; workspace formulas are those of cuDNN's algorithms as inferred in the
// literature. For networks that nobody has recorded and devices that nobody has; a recorded table
// is better.

#ifndef SPILLWAY_SIM_COST_ROOFLINE_H_
#define SPILLWAY_SIM_COST_ROOFLINE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"

namespace spillway {

class RooflineCostModel final : public CostModel {
 public:
  explicit RooflineCostModel(const Device& device) : device_(device) {}

  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override;

 private:
  std::vector<Kernel> Candidates(const Op& op, const Slot& slot, int64_t batch) const;
  Kernel Estimate(const Op& op, const Slot& slot, int64_t batch, const std::string& algorithm,
                  Bytes workspace) const;

  const Device device_;
  mutable std::mutex mutex_;
  // Candidates already computed, by signature and batch. Node-based, so spans stay valid.
  mutable std::map<std::pair<std::string, int64_t>, std::vector<Kernel>> known_;
};

// Workspace that a convolution algorithm needs for `batch` samples of `op`, or nullopt if it does
// not apply to the geometry. `slot` is "fwd", "bwd_data" or "bwd_filter". In bytes, fp32:
//   winograd_nonfused  36 * 4 * (T (C + K) + C K), T = ceil(H / 4) ceil(W / 4) N   3x3, stride 1
//   fft                (C N + K N + C K) P, backward data 2 (K N + C K) P + 4 C K R S
//                      P = n (n / 2 + 1) 8, n = power of two >= H + R - 1   stride 1, n <= 256
//   fft_tiling         as fft with tiles of 32 x 32, a bounded number of tiles at a time
//   gemm               C R S * OH * OW * 4 (one lowered image)
//   all others         0
// Source: vDNN++ (the formulas reproduce its Tables II and V), cuDNN's published algorithm list.
std::optional<Bytes> ConvWorkspace(const Op& op, std::string_view slot, std::string_view algorithm,
                                   int64_t batch);

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_ROOFLINE_H_
