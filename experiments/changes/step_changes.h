// The changes of a recorded step that a user asks for together.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_STEP_CHANGES_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_STEP_CHANGES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

struct StepChanges {
  enum class Numbers : uint8_t {
    kRecorded,
    kBfloat16,  // `InBfloat16`
    kAutocast,  // `UnderAutocast`
  };
  enum class Update : uint8_t {
    kRecorded,
    k8Bit,       // `With8BitOptimizer`
    kOffloaded,  // `WithOffloadedOptimizer`
    kParts,      // `WithUpdatesInParts`
    kEarly,      // the same, while backward runs
  };

  std::optional<int64_t> batch;
  std::optional<int64_t> world;   // `WithWorld`
  std::optional<int64_t> nodes;   // the same, with the GPUs of so many hosts
  std::optional<int64_t> shards;  // `WithShards`
  bool reshard = false;           // `WithReshardAfterForward`
  bool short_reduction = false;   // `WithBfloat16Reduction`
  Numbers numbers = Numbers::kRecorded;
  Update update = Update::kRecorded;
  std::optional<int64_t> loss_chunks;  // `WithLossInChunks`
  std::optional<int64_t> passes;       // micro-batches of the batch, before one update

  bool operator==(const StepChanges&) const = default;
  bool any() const { return *this != StepChanges(); }
};

// A step for which a cost model has times.
struct CostedStep {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const CostModel> cost;
};

// Returns the step after the changes, in the order of the members of `StepChanges`. `costed`
// returns a step with its times on the device. Throws `UsageError`, which says why, if the step
// cannot be changed so.
std::shared_ptr<const Trace> Changed(
    std::shared_ptr<const Trace> step, const StepChanges& changes, const Device& device,
    const std::function<CostedStep(std::shared_ptr<const Trace>)>& costed);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_STEP_CHANGES_H_
