// Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): nothing is planned. When memory
// runs out, the storage with the least heuristic value is dropped; what is needed again is rebuilt,
// which drops others in turn.
//
// The heuristics are those of its section 4.1 and appendix: `dtr`, the cost of rebuilding a
// storage, its evicted ancestors and its evicted descendants, over its size and the time since its
// last use; `dtr-eq`, likewise with all evicted ones that hang together with it, which the paper
// keeps in sets that are quick to update; `dtr-local`, its own cost alone; `msps` (Peng et al.,
// ASPLOS 2020), cost with evicted ancestors over size; `lru`, time alone; `size`, size alone. Times
// are sums of kernel times, the fastest that fit when an op runs.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "policies/builtin.h"
#include "policies/kernels/kernel_choice.h"

namespace spillway {
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
    if (op != OpId{0} || context.recomputing()) return;
    now_ = {};
    for (Storage& storage : storages_) storage.used = {};
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(KernelChoice::kGreedy, context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    now_ += times_[Index(op)];
    for (const TensorId id : context.liveness().Storages(op)) storages_[Index(id)].used = now_;
  }

  // What is evicted beside a storage only adds to its value: that is looked at where the storage's
  // own cost makes it the first.
  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    std::vector<Victim> open;
    for (size_t i = 0; i < storages_.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (storages_[i].cost == Duration() || context.Where(id) != Residency::kDevice) continue;
      if (context.Pinned(id) || !context.NextUse(id)) continue;
      open.push_back({ValueOf(context, id, storages_[i].cost), false, id});
    }
    std::ranges::make_heap(open, std::greater());
    while (!open.empty()) {
      std::ranges::pop_heap(open, std::greater());
      Victim& first = open.back();
      if (!first.whole) {
        first = {ValueOf(context, first.id, CostOf(context, first.id)), true, first.id};
        std::ranges::push_heap(open, std::greater());
      } else if (context.Evict(first.id)) {
        return true;
      } else {  // it cannot be rebuilt
        open.pop_back();
      }
    }
    return false;
  }

 private:
  struct Storage {
    Duration cost;                            // of all ops that write it
    std::vector<TensorId> parents, children;  // what they read; what is made from it
    Duration used;                            // last, by `now_`
    uint64_t seen = 0;                        // by the last search so far
  };

  struct Victim {
    double value;
    bool whole;  // with what is evicted beside it
    TensorId id;

    auto operator<=>(const Victim&) const = default;
  };

  Duration CostOf(const PolicyContext& context, TensorId id) {
    switch (heuristic_) {
      case Heuristic::kMsps:
        return CostWithEvicted(context, id, kAncestors);
      case Heuristic::kEq:
        return CostWithEvicted(context, id, kAncestors | kDescendants);
      case Heuristic::kDtr:
        return CostWithEvicted(context, id, kAncestors) +
               CostWithEvicted(context, id, kDescendants) - storages_[Index(id)].cost;
      default:
        return storages_[Index(id)].cost;
    }
  }

  double ValueOf(const PolicyContext& context, TensorId id, Duration cost) const {
    const auto size = static_cast<double>(context.trace().tensor(id).size.count());
    const auto idle = static_cast<double>((now_ - storages_[Index(id)].used).picoseconds() + 1);
    switch (heuristic_) {
      case Heuristic::kMsps:
        return static_cast<double>(cost.picoseconds()) / size;
      case Heuristic::kLru:
        return 1 / idle;
      case Heuristic::kSize:
        return 1 / size;
      default:
        return static_cast<double>(cost.picoseconds()) / (size * idle);
    }
  }

  enum Direction : unsigned { kAncestors = 1, kDescendants = 2 };

  // Of the storage and the evicted ones that are reached from it in these directions, through
  // evicted ones alone.
  Duration CostWithEvicted(const PolicyContext& context, TensorId id, unsigned directions) {
    std::vector<TensorId> found{id};
    storages_[Index(id)].seen = ++searches_;
    Duration cost;
    for (size_t i = 0; i < found.size(); ++i) {
      const Storage& storage = storages_[Index(found[i])];
      cost += storage.cost;
      const auto visit = [&](const std::vector<TensorId>& neighbours) {
        for (const TensorId next : neighbours) {
          uint64_t& seen = storages_[Index(next)].seen;
          if (seen == searches_ || context.Where(next) != Residency::kEvicted) continue;
          seen = searches_;
          found.push_back(next);
        }
      };
      if (directions & kAncestors) visit(storage.parents);
      if (directions & kDescendants) visit(storage.children);
    }
    return cost;
  }

  const Heuristic heuristic_;
  const KernelChooser chooser_;
  std::vector<Duration> times_;    // of each op, with its fastest kernels
  std::vector<Storage> storages_;  // by tensor
  uint64_t searches_ = 0;          // of `CostWithEvicted`
  Duration now_;
};

}  // namespace

std::unique_ptr<Policy> MakeDtrPolicy(Params& params) {
  const Heuristic heuristic = params.Enum<Heuristic>("heuristic", "dtr",
                                                     {{"dtr", Heuristic::kDtr},
                                                      {"dtr-eq", Heuristic::kEq},
                                                      {"dtr-local", Heuristic::kLocal},
                                                      {"msps", Heuristic::kMsps},
                                                      {"lru", Heuristic::kLru},
                                                      {"size", Heuristic::kSize}},
                                                     "what is dropped first: the least of it");
  return std::make_unique<DtrPolicy>(heuristic, ReadKernelChooser(params));
}

}  // namespace spillway
