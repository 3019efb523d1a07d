#include "experiments/tools/plan/step_weights.h"

#include <algorithm>
#include <vector>

#include "experiments/changes/planned_step.h"
#include "experiments/run/inputs.h"

namespace spillway::lab {
namespace {

constexpr int64_t kShares = 16;  // so many parts of the weights are tried
constexpr int64_t kWindows = 8;  // one part in so many of them is on the device
// A plan that takes at most one part in so many longer than the step in core is not compared.
constexpr int64_t kSlower = 50;

Bytes BytesOf(const Trace& trace, const std::vector<TensorId>& ids) {
  Bytes sum;
  for (const TensorId id : ids) sum += trace.tensor(id).size;
  return sum;
}

}  // namespace

StepWithWeights PlanWithWeights(const Case& asked, const Trace& trace, Bytes memory,
                                bool all_state) {
  const Device device = LoadMachine(asked);
  const HostableWeights weights = WeightsIn(trace);
  const Bytes frozen = BytesOf(trace, weights.frozen);
  const Bytes size = frozen + BytesOf(trace, weights.trained);
  const auto plan_with = [&](Bytes leave) {
    const auto leaving = LeavingWeights(trace, weights, leave);
    StepWithWeights found;
    found.planner = std::make_unique<const StepPlanner>(
        asked, std::make_shared<const Trace>(WithWeightsOnHost(trace, device, leaving)), all_state);
    found.planned = found.planner->In(memory);
    found.outside = BytesOf(trace, leaving);
    found.trained =
        found.outside > BytesOf(trace, LeavingWeights(trace, {weights.frozen, {}}, leave));
    return found;
  };
  const auto bytes_of = [&](int64_t share) { return Bytes(size.count() / kShares * share); };
  int64_t share = 0;
  StepWithWeights found = plan_with(Bytes());
  const Duration in_core = found.planned.prediction.eager_step;
  while (!found.planned.fits() && size > Bytes() && share < kShares) {
    const Bytes lacks = std::max(found.planned.best, found.planner->floor().size) - memory;
    const Int128 more = Int128{lacks.count()} * kShares * kWindows / (kWindows - 1) / size.count();
    share = std::min(kShares, share + std::max<int64_t>(1, static_cast<int64_t>(more)));
    found = plan_with(bytes_of(share));
  }
  const Bytes least = bytes_of(share);
  if (!found.planned.fits() || least >= frozen ||
      found.planned.prediction.step * kSlower <= in_core * (kSlower + 1)) {
    return found;
  }
  for (const Bytes leave : {Bytes((least + frozen).count() / 2), frozen}) {
    StepWithWeights other = plan_with(leave);
    if (other.planned.fits() && other.planned.prediction.step < found.planned.prediction.step) {
      found = std::move(other);
    }
  }
  return found;
}

}  // namespace spillway::lab
