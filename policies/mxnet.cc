// The memory rules of MXNet, as SuperNeurons (Wang et al., PPoPP 2018, section 2.2) compares with
// it.
//
// - A tensor is freed after its last use; what can work in place does (Chen et al. 2016, "Training
//   Deep Nets with Sublinear Memory Cost", section 3). The runtime and the preset do this.
// - The forward pass is cut into segments where one activation alone is handed on. That one is
//   kept; what a segment computes is dropped when the forward pass is done with it, and computed
//   again, once for the whole segment, when backward first needs something of it (section 4.1). The
//   last segment, which backward needs at once, is kept.
// - Segments are as large as a budget allows: one ends at the first possible cut after more than
//   the budget has been computed in it (section 4.2, Algorithm 3). Budgets are tried for the least
//   sum of what is kept and the largest segment; on a uniform chain that gives sqrt(N) segments.
// - A convolution takes the fastest algorithm that needs at most 1 GiB of workspace (the parameter
//   `workspace` of MXNet's Convolution, 1024 MB).

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"

namespace spillway {
namespace {

// The forward pass as the search for budgets sees it, by op.
struct ForwardPass {
  struct Step {
    Bytes computed;                // of what backward needs
    std::optional<TensorId> last;  // the activation that alone is handed on: a cut is possible
    Bytes handed_on;
  };
  std::vector<Step> steps;
  Bytes total;
};

struct Storage {
  size_t first = 0, last = 0;  // op that writes it, last op of the forward pass that uses it
  bool needed = false;         // in backward
};

class MxnetPolicy final : public Policy {
 public:
  MxnetPolicy(bool recompute, Bytes workspace, const KernelChooser& chooser)
      : recompute_(recompute), workspace_(workspace), chooser_(chooser) {}

  void Plan(PolicyContext& context) override {
    drops_.assign(context.trace().ops.size(), {});
    if (recompute_ && context.trace().training) PlanDrops(context);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.Within(workspace_, context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    if (context.recomputing()) return;
    // False for what cannot be computed again: it stays.
    for (const TensorId storage : drops_[Index(op)]) context.Evict(storage);
  }

 private:
  void PlanDrops(const PolicyContext& context) {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    const auto end =
        static_cast<size_t>(std::find_if(trace.ops.begin(), trace.ops.end(),
                                         [](const Op& op) { return op.phase != Phase::kForward; }) -
                            trace.ops.begin());
    ForwardPass pass;
    pass.steps.resize(end);
    std::vector<std::optional<Storage>> storages(trace.tensors.size());
    std::vector<int> handed_on(end + 1);  // changes of the number of activations handed on
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness.Root(id) != id || trace.tensor(id).kind != TensorKind::kActivation) continue;
      const auto uses = liveness.Uses(id);
      if (uses.empty() || Index(uses.front()) >= end) continue;
      Storage storage;
      storage.first = Index(uses.front());
      const auto after = std::lower_bound(uses.begin(), uses.end(), static_cast<OpId>(end));
      storage.last = Index(*std::prev(after));
      storage.needed = after != uses.end();
      storages[i] = storage;
      ++handed_on[storage.first];
      --handed_on[storage.last];
      if (storage.needed) pass.steps[storage.first].computed += trace.tensor(id).size;
      pass.total += trace.tensor(id).size;
    }
    MarkCuts(trace, liveness, storages, handed_on, pass);

    std::vector<size_t> cuts = Cut(pass, BestBudget(pass));
    if (cuts.empty()) return;
    std::vector<bool> kept(trace.tensors.size());
    for (const size_t cut : cuts) kept[Index(*pass.steps[cut].last)] = true;
    for (size_t i = 0; i < storages.size(); ++i) {
      const auto& storage = storages[i];
      if (!storage || !storage->needed || kept[i] || storage->first > cuts.back()) continue;
      drops_[storage->last].push_back(static_cast<TensorId>(i));
    }
  }

  static void MarkCuts(const Trace& trace, const Liveness& liveness,
                       const std::vector<std::optional<Storage>>& storages,
                       const std::vector<int>& handed_on, ForwardPass& pass) {
    int crossing = 0;
    for (size_t i = 0; i < pass.steps.size(); ++i) {
      crossing += handed_on[i];
      if (crossing != 1) continue;
      // If one alone is handed on, the op has written it, or an earlier op could have been the cut.
      for (const TensorId output : trace.ops[i].outputs) {
        const TensorId id = liveness.Root(output);
        const auto& storage = storages[Index(id)];
        if (!storage || storage->last <= i) continue;
        pass.steps[i].last = id;
        pass.steps[i].handed_on = trace.tensor(id).size;
      }
    }
  }

  // The ops after which a segment ends.
  static std::vector<size_t> Cut(const ForwardPass& pass, Bytes budget) {
    std::vector<size_t> cuts;
    Bytes computed;
    for (size_t i = 0; i < pass.steps.size(); ++i) {
      computed += pass.steps[i].computed;
      if (!pass.steps[i].last || computed <= budget) continue;
      cuts.push_back(i);
      computed = Bytes(0);
    }
    return cuts;
  }

  static Bytes BestBudget(const ForwardPass& pass) {
    constexpr int64_t kBudgets = 256;
    Bytes best;
    std::optional<Bytes> least;
    for (int64_t i = 0; i < kBudgets; ++i) {
      const Bytes budget(pass.total.count() / kBudgets * i);
      Bytes kept, computed, largest;
      for (const ForwardPass::Step& step : pass.steps) {
        computed += step.computed;
        largest = std::max(largest, computed);
        if (!step.last || computed <= budget) continue;
        kept += step.handed_on;
        computed = Bytes(0);
      }
      if (least && kept + largest >= *least) continue;
      least = kept + largest;
      best = budget;
    }
    return best;
  }

  const bool recompute_;
  const Bytes workspace_;
  const KernelChooser chooser_;
  std::vector<std::vector<TensorId>> drops_;  // after each op
};

std::unique_ptr<Policy> MakeMxnetPolicy(Params& params) {
  const bool recompute =
      params.Flag("recompute", true, "drop what segments compute and compute it again");
  const Bytes workspace = params.Size("workspace", Bytes::GiB(1), "the most workspace of a call");
  return std::make_unique<MxnetPolicy>(recompute, workspace, ReadKernelChooser(params));
}

}  // namespace

void RegisterMxnet(PolicyRegistry& registry) {
  registry.Add("mxnet",
               "liveness, and segments of about sqrt(N) layers computed again in backward (Chen et "
               "al. 2016)",
               MakeMxnetPolicy);
}

}  // namespace spillway
