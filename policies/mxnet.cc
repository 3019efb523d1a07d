// The memory rules of MXNet, with which SuperNeurons (Wang et al., PPoPP 2018, section 2.2)
// compares.
//
// - A tensor is freed after its last use, and ops work in place where they can (Chen et al. 2016,
//   "Training Deep Nets with Sublinear Memory Cost", section 3). The runtime and the preset do
//   this.
// - The forward pass is cut into segments at ops after which only one activation is handed on. This
//   activation is kept. The other results of a segment are dropped when the forward pass no longer
//   needs them. When backward first needs a dropped result, the whole segment is recomputed,
//   once (section 4.1). The last segment is kept, because backward needs it at once.
// - Segments are as large as a budget allows: a segment ends at the first possible cut after more
//   than the budget has been computed in it (section 4.2, Algorithm 3). Of all budgets tried, the
//   one with the least sum of the kept bytes and the largest segment is taken. On a uniform chain
//   this gives sqrt(N) segments.
// - A convolution takes the fastest algorithm that needs at most 1 GiB of workspace (the parameter
//   `workspace` of MXNet's Convolution, 1024 MB).

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

// The facts about the forward pass from which the budget is chosen.
struct ForwardPass {
  // An op.
  struct Step {
    Bytes computed;                // the bytes it writes that backward needs
    std::optional<TensorId> last;  // the only activation handed on after it, if a cut is possible
    Bytes handed_on;               // the size of `last`
  };
  std::vector<Step> steps;
  Bytes total;
};

struct Storage {
  size_t first = 0, last = 0;  // the op that writes it; the last op of forward that uses it
  bool needed = false;         // backward uses it
};

class MxnetPolicy final : public Policy {
 public:
  MxnetPolicy(bool recompute, Bytes workspace, const KernelChooser& chooser)
      : recompute_(recompute), workspace_(workspace), chooser_(chooser) {}

  void Plan(PolicyContext& context) override {
    drops_.assign(context.trace().ops.size(), {});
    if (recompute_ && context.trace().training) PlanPasses(context);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.Within(workspace_, context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    if (context.recomputing()) return;
    // A storage that cannot be recomputed stays: Evict returns false.
    for (const TensorId storage : drops_[Index(op)]) context.Evict(storage);
  }

 private:
  // Plans the drops of each forward pass, of which every micro-batch has one.
  void PlanPasses(const PolicyContext& context) {
    const std::vector<Op>& ops = context.trace().ops;
    for (size_t begin = 0, end = 0; begin < ops.size(); begin = end + 1) {
      end = begin;
      while (end < ops.size() && ops[end].phase == Phase::kForward) ++end;
      if (end > begin) PlanDrops(context, begin, end);
    }
  }

  // Plans the drops of the forward ops [begin, end).
  void PlanDrops(const PolicyContext& context, size_t begin, size_t end) {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    ForwardPass pass;
    pass.steps.resize(end);
    std::vector<std::optional<Storage>> storages(trace.tensors.size());
    std::vector<int> handed_on(end + 1);  // changes of the number of activations that are handed on
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness.Root(id) != id || trace.tensor(id).kind != TensorKind::kActivation) continue;
      const auto uses = liveness.Uses(id);
      if (uses.empty() || Index(uses.front()) < begin || Index(uses.front()) >= end) continue;
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
      // If this op has not written the only activation, an earlier op has been a possible cut.
      for (const TensorId output : trace.ops[i].outputs) {
        const TensorId id = liveness.Root(output);
        const auto& storage = storages[Index(id)];
        if (!storage || storage->last <= i) continue;
        pass.steps[i].last = id;
        pass.steps[i].handed_on = trace.tensor(id).size;
      }
    }
  }

  // Returns the ops after which a segment ends.
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
  std::vector<std::vector<TensorId>> drops_;  // by op: the storages to drop after it
};

std::unique_ptr<Policy> MakeMxnetPolicy(Params& params) {
  const bool recompute =
      params.Flag("recompute", true, "drop the results of segments, and recompute them");
  const Bytes workspace = params.Size("workspace", Bytes::GiB(1), "the most workspace of a call");
  return std::make_unique<MxnetPolicy>(recompute, workspace, ReadKernelChooser(params));
}

}  // namespace

void RegisterMxnet(PolicyRegistry& registry) {
  registry.Add(
      "mxnet",
      "liveness, and segments of about sqrt(N) layers recomputed in backward (Chen et "
      "al. 2016). In transformers, segments end at the sums, where one activation is handed "
      "on",
      MakeMxnetPolicy);
}

}  // namespace spillway::policies
