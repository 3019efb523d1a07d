#include "sim/runtime/recompute.h"

#include <algorithm>
#include <utility>

namespace spillway::sim {
namespace {

bool Names(const std::vector<TensorId>& list, TensorId storage, const Liveness& liveness) {
  return std::any_of(list.begin(), list.end(),
                     [&](TensorId id) { return liveness.Root(id) == storage; });
}

}  // namespace

size_t RecomputePlanner::VersionAt(TensorId storage, OpId op) const {
  const auto writers = liveness_.Writers(storage);
  return static_cast<size_t>(std::lower_bound(writers.begin(), writers.end(), op) -
                             writers.begin());
}

std::optional<TensorId> RecomputePlanner::LeftStale(std::span<const OpId> ops, OpId at,
                                                    const Predicate& live) const {
  for (const OpId op : ops) {
    for (const TensorId output : trace_.op(op).outputs) {
      const TensorId storage = liveness_.Root(output);
      const auto later = liveness_.Writers(storage).subspan(VersionAt(storage, op) + 1);
      if (later.empty() || later.front() >= at) continue;
      if (in_ops_[Index(later.front())] != call_ && live(storage)) return storage;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<OpId>> RecomputePlanner::Plan(TensorId storage, OpId at,
                                                        const Predicate& available,
                                                        const Predicate& live) {
  ++call_;
  const auto is_new = [this](std::vector<uint32_t>& marks, size_t i) {
    return std::exchange(marks[i], call_) != call_;
  };
  std::vector<OpId> ops;
  is_new(planned_, Index(storage));
  std::vector<TensorId> open{storage};
  for (;;) {
    if (open.empty()) {
      // A storage that the ops overwrite and that is still needed is brought back to its present
      // version by further ops.
      std::sort(ops.begin(), ops.end());
      const std::optional<TensorId> stale = LeftStale(ops, at, live);
      if (!stale) break;
      if (!is_new(planned_, Index(*stale))) return std::nullopt;
      open.push_back(*stale);
    }
    const TensorId wanted = open.back();
    open.pop_back();
    const auto writers = liveness_.Writers(wanted).first(VersionAt(wanted, at));
    if (writers.empty()) return std::nullopt;
    for (const OpId op : writers) {
      if (!is_new(in_ops_, Index(op))) continue;
      ops.push_back(op);
      const Op& again = trace_.op(op);
      if (!again.recomputable) return std::nullopt;
      for (const TensorId input : again.inputs) {
        const TensorId needed = liveness_.Root(input);
        const bool in_place = Names(again.outputs, needed, liveness_);
        if (!in_place && VersionAt(needed, op) != VersionAt(needed, at)) return std::nullopt;
        if (in_place && VersionAt(needed, op) == 0) return std::nullopt;
        if ((in_place || !available(needed)) && is_new(planned_, Index(needed))) {
          open.push_back(needed);
        }
      }
    }
  }
  return ops;
}

}  // namespace spillway::sim
