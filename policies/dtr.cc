// Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): nothing is planned. When memory
// runs out, the storage with the least heuristic value is dropped. A storage that is needed again
// is recomputed, which may drop other storages.
//
// The heuristics are from section 4.1 and the appendix of the paper:
//
//   dtr        the cost of recomputing a storage, its evicted ancestors and its evicted
//              descendants, over its size and the time since its last use
//   dtr-eq     as dtr, but with all evicted storages that are connected with it through evicted
//              storages; the paper keeps them in sets that are quick to update
//   dtr-local  as dtr, but with the cost of the storage alone
//   msps       the cost with evicted ancestors, over the size (Peng et al., ASPLOS 2020)
//   lru        the time since the last use alone
//   size       the size alone
//
// Times are sums of the times of the fastest kernels. An op runs the fastest kernels that fit.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

enum class Heuristic : uint8_t { kDtr, kEq, kLocal, kMsps, kLru, kSize };

class DtrPolicy final : public Policy {
 public:
  DtrPolicy(Heuristic heuristic, const KernelChooser& chooser)
      : heuristic_(heuristic), chooser_(chooser) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    storages_.assign(trace.tensors.size(), {});
    for (size_t i = 0; i < storages_.size(); ++i) {
      storages_[i].size = static_cast<double>(trace.tensors[i].size.count());
    }
    made_.clear();
    times_.clear();
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      Duration time;
      for (size_t slot = 0; slot < op.slots.size(); ++slot) {
        time += context.kernels(static_cast<OpId>(i), slot).front().time;
      }
      times_.push_back(time);
      for (const TensorId output : op.outputs) {
        const TensorId made = liveness.Root(output);
        Storage& storage = storages_[Index(made)];
        storage.cost += time;
        for (const TensorId input : op.inputs) {
          const TensorId from = liveness.Root(input);
          if (from == made) continue;
          storage.parents.push_back(from);
          storages_[Index(from)].children.push_back(made);
        }
      }
    }
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    if (op == OpId{0} && !context.recomputing()) {
      now_ = {};
      made_.clear();
      preparing_.clear();
      for (Storage& storage : storages_) {
        storage.used = {};
        storage.listed = storage.evicted = storage.known = false;
      }
    }
    preparing_.push_back(op);
    ranked_ = false;
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(KernelChoice::kGreedy, context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    NoteRecomputed(context, op);
    preparing_.pop_back();
    ranked_ = false;
    now_ += times_[Index(op)];
    for (const TensorId id : context.liveness().Storages(op)) {
      storages_[Index(id)].used = now_;
      List(id);
    }
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    for (const OpId op : preparing_) NoteRecomputed(context, op);
    if (!std::exchange(ranked_, true)) Rank();
    std::vector<Victim> pinned;
    bool done = false;
    while (!done && !ranking_.empty()) {
      std::ranges::pop_heap(ranking_, std::greater());
      Victim& first = ranking_.back();
      Storage& storage = storages_[Index(first.id)];
      if (!storage.known) {  // the value has grown
        first.value = ValueOf(first.id);
        std::ranges::push_heap(ranking_, std::greater());
        continue;
      }
      const Victim victim = first;
      ranking_.pop_back();
      const TensorId id = victim.id;
      storage.gone = context.Where(id) != Residency::kDevice;
      if (storage.gone || !context.NextUse(id)) continue;
      if (context.Pinned(id)) {
        pinned.push_back(victim);
        continue;
      }
      // A storage that cannot be recomputed now cannot be recomputed before the next op either.
      done = context.Evict(id);
      if (!done) continue;
      storage.gone = storage.evicted = true;
      Forget(id);
    }
    for (const Victim& victim : pinned) {  // may not be pinned at the next request
      ranking_.push_back(victim);
      std::ranges::push_heap(ranking_, std::greater());
    }
    return done;
  }

 private:
  struct Storage {
    double size = 0;                          // in bytes
    Duration cost;                            // the time of all ops that write it
    std::vector<TensorId> parents, children;  // read to make it; made from it
    Duration used;                            // the time of its last use, by `now_`
    Duration whole;                           // its cost by the heuristic
    bool known = false;                       // `whole` is up to date
    bool listed = false;                      // it is in `made_`
    bool gone = false;                        // it is not on the device
    bool evicted = false;
    uint64_t seen = 0;  // the last search that has found it
  };

  struct Victim {
    double value;
    TensorId id;

    auto operator<=>(const Victim&) const = default;
  };

  void Rank() {
    std::erase_if(made_, [this](TensorId id) {
      Storage& storage = storages_[Index(id)];
      storage.listed = !storage.gone;
      return storage.gone;
    });
    ranking_.clear();
    for (const TensorId id : made_) ranking_.push_back({ValueOf(id), id});
    std::ranges::make_heap(ranking_, std::greater());
  }

  // Notes that evicted storages of the op have been recomputed.
  void NoteRecomputed(const PolicyContext& context, OpId op) {
    for (const TensorId id : context.liveness().Storages(op)) {
      Storage& storage = storages_[Index(id)];
      if (!storage.evicted || context.Where(id) == Residency::kEvicted) continue;
      storage.evicted = storage.known = ranked_ = false;
      List(id);
      Forget(id);
    }
  }

  // Notes that the storage is on the device.
  void List(TensorId id) {
    Storage& storage = storages_[Index(id)];
    storage.gone = false;
    if (storage.cost > Duration() && !std::exchange(storage.listed, true)) made_.push_back(id);
  }

  Duration CostOf(TensorId id) {
    switch (heuristic_) {
      case Heuristic::kMsps:
        return CostWithEvicted(id, kAncestors);
      case Heuristic::kEq:
        return CostWithEvicted(id, kBoth);
      case Heuristic::kDtr:
        return CostWithEvicted(id, kAncestors) + CostWithEvicted(id, kDescendants) -
               storages_[Index(id)].cost;
      default:
        return storages_[Index(id)].cost;
    }
  }

  double ValueOf(TensorId id) {
    Storage& storage = storages_[Index(id)];
    if (!std::exchange(storage.known, true)) storage.whole = CostOf(id);
    const auto cost = static_cast<double>(storage.whole.picoseconds());
    const auto idle = static_cast<double>((now_ - storage.used).picoseconds() + 1);
    switch (heuristic_) {
      case Heuristic::kMsps:
        return cost / storage.size;
      case Heuristic::kLru:
        return 1 / idle;
      case Heuristic::kSize:
        return 1 / storage.size;
      default:
        return cost / (storage.size * idle);
    }
  }

  enum Direction : unsigned { kAncestors = 1, kDescendants = 2, kBoth = 3 };

  // Returns the cost of the storage and of the evicted storages that are reached from it.
  Duration CostWithEvicted(TensorId id, unsigned directions) {
    Duration cost;
    for (const TensorId found : Reach(id, directions)) cost += storages_[Index(found)].cost;
    return cost;
  }

  // Notes that a storage was evicted or recomputed: the costs of the storages around it change.
  void Forget(TensorId id) {
    const bool mixed = heuristic_ == Heuristic::kEq;
    for (const unsigned directions : {mixed ? kBoth : kAncestors, mixed ? kBoth : kDescendants}) {
      for (const TensorId found : Reach(id, directions)) {
        const auto forget = [this](const std::vector<TensorId>& neighbours) {
          for (const TensorId next : neighbours) storages_[Index(next)].known = false;
        };
        if (directions & kAncestors) forget(storages_[Index(found)].parents);
        if (directions & kDescendants) forget(storages_[Index(found)].children);
      }
    }
  }

  // Returns the storage and the evicted storages that are reached from it in these directions
  // through evicted storages alone. The result is valid until the next call.
  std::span<const TensorId> Reach(TensorId id, unsigned directions) {
    found_.assign(1, id);
    storages_[Index(id)].seen = ++searches_;
    for (size_t i = 0; i < found_.size(); ++i) {
      const Storage& storage = storages_[Index(found_[i])];
      const auto visit = [&](const std::vector<TensorId>& neighbours) {
        for (const TensorId next : neighbours) {
          Storage& neighbour = storages_[Index(next)];
          if (!neighbour.evicted || std::exchange(neighbour.seen, searches_) == searches_) continue;
          found_.push_back(next);
        }
      };
      if (directions & kAncestors) visit(storage.parents);
      if (directions & kDescendants) visit(storage.children);
    }
    return found_;
  }

  const Heuristic heuristic_;
  const KernelChooser chooser_;
  std::vector<Duration> times_;    // by op, with its fastest kernels
  std::vector<Storage> storages_;  // by tensor
  std::vector<TensorId> made_;     // made by ops of this iteration; some may have gone
  std::vector<Victim> ranking_;    // a heap, the least first; an eviction only raises values
  bool ranked_ = false;            // `ranking_` is of the current op
  std::vector<OpId> preparing_;    // an op, and the ops that run again for it
  std::vector<TensorId> found_;    // the result of `Reach`
  uint64_t searches_ = 0;          // the number of calls of `Reach`
  Duration now_;                   // the sum of the times of the ops issued in this iteration
};

std::unique_ptr<Policy> MakeDtrPolicy(Params& params) {
  const Heuristic heuristic =
      params.Enum<Heuristic>("heuristic", "dtr",
                             {{"dtr", Heuristic::kDtr},
                              {"dtr-eq", Heuristic::kEq},
                              {"dtr-local", Heuristic::kLocal},
                              {"msps", Heuristic::kMsps},
                              {"lru", Heuristic::kLru},
                              {"size", Heuristic::kSize}},
                             "the value by which storages are dropped, the least first");
  return std::make_unique<DtrPolicy>(heuristic, ReadKernelChooser(params));
}

}  // namespace

void RegisterDtr(PolicyRegistry& registry) {
  registry.Add("dtr",
               "nothing planned: what is cheap to recompute, large and long unused is dropped when "
               "memory runs out (DTR, section 4)",
               MakeDtrPolicy);
}

}  // namespace spillway::policies
