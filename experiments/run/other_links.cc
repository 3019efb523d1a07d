#include "experiments/run/other_links.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spillway::lab {
namespace {

// A cost model with the copy times of the given links and all other times of another model.
class OtherLinks final : public CostModel {
 public:
  OtherLinks(std::shared_ptr<const CostModel> model, const Link& h2d, const Link& d2h)
      : model_(std::move(model)), h2d_(h2d), d2h_(d2h) {}

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override {
    return model_->Batches(op, slot);
  }
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override {
    return model_->Kernels(op, slot, batch);
  }
  Duration CopyTime(Direction direction, Bytes size) const override {
    const Link& link = direction == Direction::kToDevice ? h2d_ : d2h_;
    return link.latency + TransferTime(size, link.bandwidth);
  }
  std::string Provenance() const override { return model_->Provenance(); }
  std::string ArithmeticFor(const Trace& trace) const override {
    return model_->ArithmeticFor(trace);
  }

 private:
  const std::shared_ptr<const CostModel> model_;
  const Link h2d_;
  const Link d2h_;
};

Draft WithCostOfLinks(Draft run) {
  run.cost =
      std::make_shared<const OtherLinks>(std::move(run.cost), run.device.h2d, run.device.d2h);
  return run;
}

}  // namespace

Bandwidth Scaled(Bandwidth rate, double factor) {
  const double most = static_cast<double>(kFastestLink.bytes_per_second);
  const double scaled = static_cast<double>(rate.bytes_per_second) * factor;
  return std::max(Bandwidth{std::llround(std::min(scaled, most))}, Device::kLeastBandwidth);
}

Draft WithLink(Draft run, Direction direction, Bandwidth rate) {
  Device& device = run.device;
  (direction == Direction::kToDevice ? device.h2d : device.d2h).bandwidth = rate;
  device.duplex.bytes_per_second += rate.bytes_per_second;
  return WithCostOfLinks(std::move(run));
}

Draft WithSlowerLinks(Draft run, double share) {
  Device& device = run.device;
  for (Bandwidth* const rate : {&device.h2d.bandwidth, &device.d2h.bandwidth, &device.duplex}) {
    *rate = Scaled(*rate, share);
  }
  return WithCostOfLinks(std::move(run));
}

}  // namespace spillway::lab
