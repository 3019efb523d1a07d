// offload-largest: offloads the largest activations between their last use in forward and their
// first use in backward, and prefetches them a few ops early.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "policies/plugin/plugin.h"
#include "policies/registry.h"
#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace {

using spillway::sim::PolicyContext;
using spillway::sim::Residency;
using spillway::traces::Index;
using spillway::traces::OpId;
using spillway::traces::Phase;
using spillway::traces::TensorId;

class OffloadLargest final : public spillway::sim::Policy {
 public:
  OffloadLargest(int64_t count, int64_t ahead) : count_(count), ahead_(ahead) {}

  void Plan(PolicyContext& context) override {
    const spillway::traces::Trace& trace = context.trace();
    chosen_.assign(trace.tensors.size(), false);
    wanted_at_.assign(trace.ops.size(), {});

    // Storages, largest first; equal sizes stay in the order of the trace.
    std::vector<TensorId> activations;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (trace.tensor(id).kind == spillway::traces::TensorKind::kActivation &&
          trace.Root(id) == id) {
        activations.push_back(id);
      }
    }
    std::stable_sort(activations.begin(), activations.end(), [&](TensorId a, TensorId b) {
      return trace.tensor(a).size > trace.tensor(b).size;
    });
    activations.resize(std::min(activations.size(), static_cast<size_t>(count_)));
    for (const TensorId id : activations) chosen_[Index(id)] = true;

    // The op at which each chosen storage is prefetched: its first use in backward minus the head
    // start.
    std::vector<bool> seen(trace.tensors.size(), false);
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      if (trace.ops[i].phase != Phase::kBackward) continue;
      for (const TensorId input : trace.ops[i].inputs) {
        const TensorId storage = trace.Root(input);
        if (!chosen_[Index(storage)] || seen[Index(storage)]) continue;
        seen[Index(storage)] = true;
        wanted_at_[i - std::min(i, static_cast<size_t>(ahead_))].push_back(storage);
      }
    }
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    for (const TensorId storage : wanted_at_[Index(op)]) {
      // Prefetch returns false if there is no room yet. The runtime then fetches the storage on
      // demand.
      if (context.Where(storage) == Residency::kOutside) context.Prefetch(storage);
    }
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    const spillway::traces::Trace& trace = context.trace();
    if (trace.op(op).phase != Phase::kForward) return;
    for (const TensorId input : trace.op(op).inputs) {
      const TensorId storage = trace.Root(input);
      if (!chosen_[Index(storage)]) continue;
      const auto next = context.NextUse(storage);
      if (!next || trace.op(*next).phase == Phase::kForward) continue;
      if (context.Offload(storage)) context.Release(storage);
    }
  }

 private:
  const int64_t count_;
  const int64_t ahead_;
  std::vector<bool> chosen_;                      // by tensor: a storage to offload
  std::vector<std::vector<TensorId>> wanted_at_;  // by op: storages to prefetch before it
};

std::unique_ptr<spillway::sim::Policy> Make(spillway::traces::Params& params) {
  const int64_t count = params.Integer("count", 8, 1, 1'000'000, "how many activations to offload");
  const int64_t ahead = params.Integer("ahead", 2, 0, 1'000, "ops by which to prefetch early");
  return std::make_unique<OffloadLargest>(count, ahead);
}

void RegisterPolicies(spillway::policies::PolicyRegistry& registry) {
  registry.Add("offload-largest", "offload the largest activations between forward and backward",
               Make);
}

constexpr spillway::policies::PolicyPlugin kPlugin{.register_policies = RegisterPolicies};

}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
