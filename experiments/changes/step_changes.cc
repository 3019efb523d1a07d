#include "experiments/changes/step_changes.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "experiments/changes/autocast_step.h"
#include "experiments/changes/changed_op.h"
#include "experiments/changes/changed_step.h"
#include "experiments/changes/loss_in_chunks.h"
#include "experiments/changes/other_batch.h"
#include "experiments/changes/other_optimizer.h"
#include "experiments/changes/other_sharding.h"
#include "experiments/changes/other_world.h"
#include "traces/base/error.h"
#include "traces/base/units.h"

namespace spillway::lab {
namespace {

using Step = std::shared_ptr<const Trace>;

// Returns the trace of a change, or throws `UsageError`, which says why there is none.
Step Made(std::optional<Trace> made, const char* option, const std::string& why_not) {
  if (made) return std::make_shared<const Trace>(*std::move(made));
  throw UsageError(fmt::format("{}: {}", option, why_not));
}

Step WithNumbers(const Step& step, StepChanges::Numbers numbers, const Device& device,
                 const CostModel& cost) {
  if (!device.matrix_flops_per_second.contains(Arithmetic::kBf16)) {
    throw UsageError(fmt::format("precision: the device '{}' has no rate for bf16", device.name));
  }
  if (HasUnfusedAttention(*step)) return Made(std::nullopt, "precision", kUnfusedAttention);
  if (numbers == StepChanges::Numbers::kAutocast) {
    std::string ignored;
    return Made(UnderAutocast(*step, device, cost, ignored), "precision",
                "autocast is for a step of spillway_torch with parameters in fp32 and no values of "
                "16 bits, whose file says what autograd saved");
  }
  return Made(InBfloat16(*step, device, cost), "precision",
              "bf16 is for a step with parameters in fp32 and no values of 16 bits");
}

Step WithUpdate(const CostedStep& step, StepChanges::Update update, const Device& device) {
  const std::string kNotAdam =
      "its update does not hold two moments for each parameter, as that of Adam does";
  if (update == StepChanges::Update::k8Bit) {
    return Made(With8BitOptimizer(*step.trace, device), "optimizer", kNotAdam);
  }
  const std::string used = ", or gradients are used between backward and the update";
  if (update != StepChanges::Update::kOffloaded) {
    const bool early = update == StepChanges::Update::kEarly;
    return Made(WithUpdatesInParts(*step.trace, *step.cost, early), "optimizer",
                kNotAdam + (early ? used : ""));
  }
  std::optional<OffloadedStep> made = WithOffloadedOptimizer(*step.trace, device, *step.cost);
  if (made && made->host > device.host_memory) {
    throw UsageError(fmt::format("optimizer: offloaded needs {} of host memory, of which {} has {}",
                                 FormatBytes(made->host), device.name,
                                 FormatBytes(device.host_memory)));
  }
  return Made(made ? std::optional(std::move(made->trace)) : std::nullopt, "optimizer",
              kNotAdam + used);
}

// Returns the number of processes that the changes ask for, one for each GPU; nullopt if they ask
// for none.
std::optional<int64_t> WantedWorld(const StepChanges& changes, const Device& device) {
  if (!changes.nodes) return changes.world;
  if (changes.world) throw UsageError("nodes: it cannot be combined with world");
  if (!device.cluster) {
    throw UsageError(fmt::format(
        "nodes: the file of {} does not say how many GPUs a host has; use world", device.name));
  }
  return *changes.nodes * device.cluster->gpus;
}

}  // namespace

Step Changed(Step step, const StepChanges& changes, const Device& device,
             const std::function<CostedStep(Step)>& costed) {
  using Numbers = StepChanges::Numbers;
  using Update = StepChanges::Update;
  const int64_t batch = changes.batch.value_or(step->batch);
  const Step given = step;
  step = AtBatch(given, {}, batch).trace;
  StepChanges others = changes;
  others.batch.reset();
  if (others.any() && !step->recording) {
    throw UsageError("the trace has no recorded step, of which only the batch can be changed");
  }
  if (const std::optional<int64_t> world = WantedWorld(changes, device)) {
    step = std::make_shared<const Trace>(WithWorld(*step, *world));
  }
  if (changes.shards) step = std::make_shared<const Trace>(WithShards(*step, *changes.shards));
  if (changes.reshard) {
    std::string why_not =
        "the step gathers no parameters in forward, or frees them behind it already";
    std::optional<Trace> made = WithReshardAfterForward(*step, why_not);
    step = WithoutEarlierSteps(Made(std::move(made), "reshard", why_not));
  }
  if (changes.short_reduction) {
    std::string why_not = "the step reduces no gradients in fp32 of parameters in bf16";
    std::optional<Trace> made = WithBfloat16Reduction(*step, device, why_not);
    step = WithoutEarlierSteps(Made(std::move(made), "reduce", why_not));
  }
  if (changes.numbers != Numbers::kRecorded) {
    step = WithNumbers(step, changes.numbers, device, *costed(step).cost);
  }
  if (changes.update == Update::k8Bit) step = WithUpdate({step, nullptr}, changes.update, device);
  if (changes.update > Update::k8Bit) step = WithUpdate(costed(step), changes.update, device);
  if (changes.loss_chunks.value_or(1) > 1) {
    step =
        Made(WithLossInChunks(*step, device, *changes.loss_chunks), "loss-chunks",
             fmt::format("the step has no cross-entropy of {} tokens or more behind a product, or "
                         "uses its logits for something else",
                         *changes.loss_chunks));
  }
  if (changes.passes.value_or(1) > 1) {
    StepChanges first;
    first.batch = batch * *changes.passes;
    first.world = changes.world;
    first.nodes = changes.nodes;
    first.shards = changes.shards;
    const Step whole = Changed(given, first, device, costed);
    step = Made(InMicroBatches(*whole, *step, device, *changes.passes), "accumulate",
                "an operator of forward or backward follows one of the update");
  }
  return step;
}

}  // namespace spillway::lab
