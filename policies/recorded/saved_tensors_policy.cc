// A policy that runs a recorded step of PyTorch under a plan: a list of the tensors that it keeps,
// recomputes or copies to the host and back.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "policies/recorded/as_recorded.h"
#include "policies/recorded/pytorch_plans.h"
#include "policies/recorded/saved_tensors.h"
#include "policies/registry.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/blocks.h"

namespace spillway::policies {
namespace {

enum class PlanKind : uint8_t { kList, kCheckpoint, kSelective, kSaveOnCpu };

class SavedTensorsPolicy final : public Policy {
 public:
  // `blocks` is the number of blocks to checkpoint; 0 means all. `path` and `text` are the list's.
  SavedTensorsPolicy(PlanKind kind, int64_t blocks, std::string path, std::string text)
      : kind_(kind), blocks_(blocks), path_(std::move(path)), text_(std::move(text)) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun&, const std::string&) override {
    if ((kind_ == PlanKind::kList) == path_.empty()) {
      throw UsageError(
          "policy 'saved-tensors' needs a list or a plan, and not both: saved-tensors:file=PATH, "
          "saved-tensors:plan=checkpoint, plan=selective or plan=save_on_cpu");
    }
    if (blocks_ > 0 && kind_ != PlanKind::kCheckpoint && kind_ != PlanKind::kSelective) {
      throw UsageError(
          "policy 'saved-tensors': blocks=... belongs to plan=checkpoint and plan=selective");
    }
    if (!trace.recording) {
      throw UsageError(
          fmt::format("policy 'saved-tensors': {} was not recorded; 'spillway trace "
                      "import' makes traces that were",
                      trace.name));
    }
    return {device.memory, HeldAsRecorded(ApplySavedTensors(trace, PlanFor(trace), cost))};
  }

 private:
  SavedTensorsPlan PlanFor(const Trace& trace) const {
    if (kind_ == PlanKind::kSaveOnCpu) return SaveOnCpu(trace);
    if (kind_ == PlanKind::kList) return ParseSavedTensors(text_, path_, trace);
    const size_t all = BlocksInOrder(trace).size();
    if (all == 0) {
      throw UsageError(
          fmt::format("policy 'saved-tensors': the layers of {} name no blocks to checkpoint; "
                      "record the step with model=...",
                      trace.name));
    }
    if (blocks_ > static_cast<int64_t>(all)) {
      throw UsageError(fmt::format("policy 'saved-tensors': blocks={}, and {} has {} blocks",
                                   blocks_, trace.name, all));
    }
    return CheckpointBlocks(
        trace, blocks_ > 0 ? static_cast<size_t>(blocks_) : all,
        kind_ == PlanKind::kSelective ? Recomputed::kCheapOps : Recomputed::kAllOps);
  }

  const PlanKind kind_;
  const int64_t blocks_;
  const std::string path_, text_;
};

std::unique_ptr<Policy> MakeSavedTensorsPolicy(Params& params) {
  const auto kind = params.Enum<PlanKind>("plan", "file",
                                          {{"file", PlanKind::kList},
                                           {"checkpoint", PlanKind::kCheckpoint},
                                           {"selective", PlanKind::kSelective},
                                           {"save_on_cpu", PlanKind::kSaveOnCpu}},
                                          "the list in a file, torch.utils.checkpoint around "
                                          "blocks, the same without matrix products, "
                                          "convolutions and attention, or "
                                          "torch.autograd.graph.save_on_cpu");
  const int64_t blocks =
      params.Integer("blocks", 0, 0, 1000000,
                     "for checkpoint and selective: the number of blocks, the first of forward; 0 "
                     "means all");
  const std::string path = params.Text(
      "file", "PATH", "",
      "the list of what becomes of each tensor that backward reads; see policies/BUILTIN.md");
  return std::make_unique<SavedTensorsPolicy>(kind, blocks, path,
                                              path.empty() ? std::string() : ReadFile(path));
}

}  // namespace

void RegisterSavedTensors(PolicyRegistry& registry) {
  registry.Add("saved-tensors",
               "as-recorded, but for what a list keeps, recomputes or offloads of what "
               "backward reads, as PyTorch does it",
               MakeSavedTensorsPolicy, {.tried_by_default = false, .for_recordings = true});
}

}  // namespace spillway::policies
