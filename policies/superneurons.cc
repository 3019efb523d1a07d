// SuperNeurons (Wang et al., PPoPP 2018): liveness, a unified tensor pool with a tensor cache,
// cost-aware recomputation and dynamic workspaces. Each technique but liveness is a parameter, so
// that its effect can be seen.
//
// The runtime does liveness (section 3.2). The outputs of the paper's DATA, CONV, FC, FORK, JOIN,
// CONCAT and SOFTMAX layers are checkpoints (superneurons_steps.h).
//
// `offload` says which tensors travel: `conv` the tensors of section 3.3.1, and `checkpoints` also
// the outputs of joins, concatenations and forks, and the image. Without these, a network with
// branches does not come down to max(l_i). With `cache=none`, the tensors leave as soon as they are
// written, and are released after their last use in forward, as in section 3.3.1. With a cache,
// nothing leaves until a request finds no room (section 3.3.2, Alg. 2). Then tensors that are not
// locked leave one at a time. With `lru` the least recently used leaves first, and with `fifo` the
// one that came first. With `belady` the one that is needed last leaves first, by liveness; the
// recomputation of dropped tensors counts as a need. When no tensor of the set is left, other data
// leaves: gradients, and data that recomputation does not cover. At last statistics leave, which
// are small but may lie between two free blocks that are large enough only together. A tensor with
// a host copy is not copied again. Backward of a convolution or a linear layer prefetches the
// tensors that are needed until the convolution below it, as far as there is room (section 3.3.1).
//
// `recompute` says which tensors are recomputed: the outputs of POOL, ACT, LRN, BN and DROPOUT are
// dropped after their last use in forward, and recomputed from the checkpoint before them when
// backward reads one (section 3.4). `speed` keeps recomputed tensors. `memory` drops the tensors
// that a recomputing step has read, unless the backward step reads them, too. `cost-aware` does the
// same in segments whose layers' inputs and outputs sum up to more than max(l_i), counted as in the
// released code. When memory is short, a tensor that can be recomputed is dropped again instead of
// travelling, unless the current op uses it.
//
// `workspace=dynamic` takes at each step the fastest algorithm whose workspace is free
// (section 3.5). `static` chooses in the same way at the first use of each step and keeps the
// choice, as the released code does. `none` takes the least workspace.
//
// Each gradient of a parameter has a block for the whole run, as in the released code. The paper
// counts neither these gradients nor the parameters.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/superneurons_steps.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

enum class Cache : uint8_t { kNone, kLru, kBelady, kFifo };
enum class WorkspaceChoice : uint8_t { kNone, kStatic, kDynamic };

struct Config {
  SuperNeuronsOffload offload = SuperNeuronsOffload::kCheckpoints;
  Cache cache = Cache::kLru;
  SuperNeuronsRecompute recompute = SuperNeuronsRecompute::kCostAware;
  WorkspaceChoice workspace = WorkspaceChoice::kDynamic;
  KernelChooser chooser = {};
};

class SuperNeuronsPolicy final : public Policy {
 public:
  explicit SuperNeuronsPolicy(const Config& config) : config_(config) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    steps_.Plan(trace, context.liveness(), config_.offload, config_.recompute);
    ranks_.resize(trace.tensors.size());
    chosen_.resize(trace.ops.size());
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (trace.tensor(id).kind != TensorKind::kParameterGradient) continue;
      if (context.liveness().Root(id) != id || context.liveness().Uses(id).empty()) continue;
      context.Reserve({&id, 1});
    }
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (!context.recomputing()) current_ = op;
    if (op != OpId{0} || context.recomputing()) return;
    order_.clear();
    ranks_.assign(ranks_.size(), std::nullopt);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    if (config_.workspace == WorkspaceChoice::kNone) {
      return config_.chooser.ByRule(KernelChoice::kMemory, context, op);
    }
    if (config_.workspace == WorkspaceChoice::kDynamic) {
      return config_.chooser.ByRule(KernelChoice::kGreedy, context, op);
    }
    KernelPlan& chosen = chosen_[Index(op)];
    if (chosen.empty()) chosen = config_.chooser.ByRule(KernelChoice::kGreedy, context, op);
    return chosen;
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    const std::optional<OpId> until = steps_.PreviousConv(op);
    if (!until) return;
    for (size_t next = Index(op) + 1; next <= Index(*until); ++next) {
      for (const TensorId storage : steps_.Needs(static_cast<OpId>(next))) {
        if (context.Where(storage) != Residency::kOutside) continue;
        if (!context.Prefetch(storage)) return;
        Touch(context, storage, op);
      }
    }
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    const std::optional<OpId> served = context.recomputing();
    for (const TensorId storage : context.liveness().Storages(op)) {
      if (MayGo(storage)) Touch(context, storage, served.value_or(op));
    }
    if (served) {
      if (steps_.DropsWhatItReads(op)) DropInputs(context, op, *served);
      return;
    }
    if (config_.cache == Cache::kNone) {
      for (const TensorId storage : steps_.WrittenLast(op)) {
        if (steps_.Leaves(storage)) context.Offload(storage);
      }
      for (const TensorId storage : steps_.UsedLast(op)) {
        if (steps_.Leaves(storage) && context.Release(storage)) Forget(storage);
      }
    }
    for (const TensorId storage : steps_.UsedLast(op)) {
      if (steps_.IsDropped(storage) && context.Evict(storage)) Forget(storage);
    }
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    if (ranks_.empty()) return false;  // before the plan: parameters find no room
    // An operand that has been brought back for the op can leave again while others are placed.
    for (const TensorId storage : context.liveness().Storages(current_)) {
      if (MayGo(storage) && !ranks_[Index(storage)]) Touch(context, storage, current_);
    }
    for (auto entry = order_.begin(); entry != order_.end();) {
      const TensorId storage = std::get<TensorId>(*entry);
      const bool present = IsOnDevice(context, storage);
      if (present && !MakeRoom(context, storage)) {
        ++entry;
        continue;
      }
      ranks_[Index(storage)].reset();
      entry = order_.erase(entry);
      if (present) return true;
    }
    return false;
  }

 private:
  // The storage with the least rank leaves first: members of the offload set, then other data, then
  // statistics, and within each class by the rule of the cache.
  using Rank = std::tuple<int, int64_t, TensorId>;

  bool MayGo(TensorId storage) const {
    return steps_.IsData(storage) || steps_.IsStatistic(storage);
  }

  static bool IsOnDevice(const PolicyContext& context, TensorId storage) {
    const Residency where = context.Where(storage);
    return where == Residency::kDevice || where == Residency::kBoth;
  }

  static bool Names(const PolicyContext& context, OpId op, TensorId storage) {
    const auto storages = context.liveness().Storages(op);
    return std::find(storages.begin(), storages.end(), storage) != storages.end();
  }

  // Notes that the storage has left.
  void Forget(TensorId storage) {
    std::optional<Rank>& rank = ranks_[Index(storage)];
    if (rank) order_.erase(*rank);
    rank.reset();
  }

  // Notes that the op has used the storage, or that it has come for a later one.
  void Touch(const PolicyContext& context, TensorId storage, OpId op) {
    std::optional<Rank>& rank = ranks_[Index(storage)];
    if (rank && config_.cache == Cache::kFifo) return;
    Forget(storage);
    if (!IsOnDevice(context, storage)) return;
    int64_t key = ++clock_;
    if (config_.cache == Cache::kBelady) {
      const std::optional<OpId> next = steps_.NextNeed(storage, op);
      key = next ? -static_cast<int64_t>(Index(*next)) : std::numeric_limits<int64_t>::min();
    }
    const int tier = steps_.Leaves(storage) ? 0 : steps_.IsData(storage) ? 1 : 2;
    rank.emplace(tier, key, storage);
    order_.insert(*rank);
  }

  bool MakeRoom(PolicyContext& context, TensorId storage) const {
    if (context.Pinned(storage)) return false;
    const bool travels =
        config_.cache != Cache::kNone && config_.offload != SuperNeuronsOffload::kNone;
    const auto drop = [&] { return steps_.IsDropped(storage) && context.Evict(storage); };
    const auto send = [&] {
      if (context.Where(storage) == Residency::kBoth) return context.Release(storage);
      return travels && context.Offload(storage) && context.Release(storage);
    };
    // An operand of the current op is copied out rather than dropped: recomputing it between the
    // other operands would take more room than the op itself.
    return travels && Names(context, current_, storage) ? send() || drop() : drop() || send();
  }

  // Evicts the storages that a step has read when it ran again, unless the step `served` uses them.
  void DropInputs(PolicyContext& context, OpId op, OpId served) {
    const auto needed = context.liveness().Storages(served);
    for (const TensorId input : context.trace().op(op).inputs) {
      const TensorId storage = context.liveness().Root(input);
      if (!steps_.IsDropped(storage) || !IsOnDevice(context, storage)) continue;
      if (context.Pinned(storage) ||
          std::find(needed.begin(), needed.end(), storage) != needed.end()) {
        continue;
      }
      if (context.Evict(storage)) Forget(storage);
    }
  }

  const Config config_;
  SuperNeuronsSteps steps_;
  std::vector<KernelPlan> chosen_;  // by op, for workspace=static
  // The storages on the device that may leave. Some may have been freed by the runtime meanwhile.
  std::set<Rank> order_;
  std::vector<std::optional<Rank>> ranks_;  // by tensor: its entry in `order_`
  int64_t clock_ = 0;
  OpId current_{};  // the op of the trace that is being served
};

std::unique_ptr<Policy> MakeSuperNeuronsPolicy(Params& params) {
  Config config;
  config.offload = params.Enum<SuperNeuronsOffload>(
      "offload", "checkpoints",
      {{"none", SuperNeuronsOffload::kNone},
       {"conv", SuperNeuronsOffload::kConv},
       {"checkpoints", SuperNeuronsOffload::kCheckpoints}},
      "which tensors leave first: none, outputs of convolutions, or also outputs of joins, "
      "concatenations and forks, and the image");
  config.cache = params.Enum<Cache>(
      "cache", "lru",
      {{"lru", Cache::kLru},
       {"belady", Cache::kBelady},
       {"fifo", Cache::kFifo},
       {"none", Cache::kNone}},
      "which tensor leaves when memory is short: the least recently used, the one needed last, or "
      "the oldest; with none, all leave as soon as they are written");
  config.recompute = params.Enum<SuperNeuronsRecompute>(
      "recompute", "cost-aware",
      {{"none", SuperNeuronsRecompute::kNone},
       {"speed", SuperNeuronsRecompute::kSpeed},
       {"memory", SuperNeuronsRecompute::kMemory},
       {"cost-aware", SuperNeuronsRecompute::kCostAware}},
      "whether outputs of cheap layers are dropped, and how often they are recomputed: speed once, "
      "memory for each step anew, cost-aware whichever stays within the largest layer's memory");
  config.workspace = params.Enum<WorkspaceChoice>(
      "workspace", "dynamic",
      {{"none", WorkspaceChoice::kNone},
       {"static", WorkspaceChoice::kStatic},
       {"dynamic", WorkspaceChoice::kDynamic}},
      "convolution algorithms: the least workspace, the fastest that fits at first "
      "use, or the fastest that fits at each step");
  config.chooser = ReadKernelChooser(params);
  return std::make_unique<SuperNeuronsPolicy>(config);
}

}  // namespace

void RegisterSuperNeurons(PolicyRegistry& registry) {
  registry.Add("superneurons",
               "a tensor cache that moves data when memory is short, recomputation of cheap "
               "layers, workspaces from what is free (SuperNeurons, section 3). In transformers, "
               "products of matrices count as convolutions; norms, activations, softmax and "
               "embeddings are cheap layers",
               MakeSuperNeuronsPolicy);
}

}  // namespace spillway::policies
