// Finds the ops that must run again to recompute a storage that was dropped, if that is possible.
//
// To recompute a storage, all ops that had written it run again, in trace order. Their inputs must
// have the version that they had then, and must be on the device, outside, or recomputable
// themselves. A storage that one of the ops updates in place is recomputed from its first write,
// even if it is available. Every other storage that the ops overwrite is also brought back to its
// present version, unless it is no longer needed.
//
// Consequently, a storage stays recomputable when more storages become available. A storage that
// can be recomputed for its next use, from the storages available then, can also be recomputed for
// any earlier op: at least as much is available then, and a part of the same ops suffices.

#ifndef SPILLWAY_SIM_RUNTIME_RECOMPUTE_H_
#define SPILLWAY_SIM_RUNTIME_RECOMPUTE_H_

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::sim {

// The planner reuses its working memory between calls, so only one thread may use it at a time.
class RecomputePlanner {
 public:
  RecomputePlanner(const Trace& trace, const Liveness& liveness)
      : trace_(trace),
        liveness_(liveness),
        in_ops_(trace.ops.size()),
        planned_(trace.tensors.size()) {}

  // A question about a storage. `available`: it is, or will be, on the device or outside, so its
  // contents need not be recomputed. `live`: later ops or the next iteration need its contents.
  using Predicate = std::function<bool(TensorId storage)>;

  // Returns the ops to run again, in ascending order, so that `storage` holds at op `at` the
  // contents that it held before it was dropped; nullopt if that is impossible. REQUIRES:
  // `available(storage)` is false.
  std::optional<std::vector<OpId>> Plan(TensorId storage, OpId at, const Predicate& available,
                                        const Predicate& live);

 private:
  // Returns the number of ops before `op` that write the storage: the version that `op` sees.
  size_t VersionAt(TensorId storage, OpId op) const;

  // Returns a live storage that the ops leave behind at an older version than op `at` needs;
  // nullopt if there is none.
  std::optional<TensorId> LeftStale(std::span<const OpId> ops, OpId at,
                                    const Predicate& live) const;

  const Trace& trace_;
  const Liveness& liveness_;
  // The number of the last call of `Plan` that put the op, or the storage, into the plan.
  std::vector<uint32_t> in_ops_, planned_;
  uint32_t call_ = 0;
};

// The storages that were dropped in an iteration. It spares the planner storages that are known to
// be recomputable: a storage could be recomputed for its next use when it was dropped. It still can
// for every op up to that use for which the storages dropped since can be recomputed, too.
class Evictions {
 public:
  explicit Evictions(size_t storages) : numbers_(storages) {}

  // Notes that the storage, which can be recomputed for its next use, is dropped.
  void Note(TensorId storage, OpId next_use) {
    while (!bounds_.empty() && bounds_.back().next_use >= next_use) bounds_.pop_back();
    numbers_[Index(storage)] = ++count_;
    bounds_.push_back({count_, next_use});
  }

  // Returns true if the storage is known to be recomputable for the op. REQUIRES: it has not come
  // back since it was dropped.
  bool CanRecompute(TensorId storage, OpId at) const {
    const uint32_t number = numbers_[Index(storage)];
    return number > 0 &&
           at <= std::ranges::lower_bound(bounds_, number, {}, &Bound::number)->next_use;
  }

 private:
  // The least next use of the storages that were dropped from `number` on.
  struct Bound {
    uint32_t number;
    OpId next_use;
  };
  std::vector<uint32_t> numbers_;  // by storage: its last drop, counted from 1; 0 for none
  uint32_t count_ = 0;
  std::vector<Bound> bounds_;  // ascending in both
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_RECOMPUTE_H_
