#include "sim/runtime/rebuild.h"

#include <algorithm>

namespace spillway {
namespace {

bool Names(const std::vector<TensorId>& list, TensorId storage, const Liveness& liveness) {
  return std::any_of(list.begin(), list.end(),
                     [&](TensorId id) { return liveness.Root(id) == storage; });
}

}  // namespace

size_t RebuildPlanner::VersionAt(TensorId storage, OpId op) const {
  const auto writers = liveness_.Writers(storage);
  return static_cast<size_t>(std::lower_bound(writers.begin(), writers.end(), op) -
                             writers.begin());
}

std::optional<TensorId> RebuildPlanner::LeftStale(const std::set<OpId>& ops, OpId at,
                                                  const Predicate& live) const {
  for (const OpId op : ops) {
    for (const TensorId output : trace_.op(op).outputs) {
      const TensorId storage = liveness_.Root(output);
      const OpId last_writer = liveness_.Writers(storage)[VersionAt(storage, at) - 1];
      if (!ops.contains(last_writer) && live(storage)) return storage;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<OpId>> RebuildPlanner::Plan(TensorId storage, OpId at,
                                                      const Predicate& available,
                                                      const Predicate& live) const {
  std::set<OpId> ops;
  std::set<TensorId> planned{storage};
  std::vector<TensorId> open{storage};
  for (;;) {
    if (open.empty()) {
      // What the ops overwrite and others still need comes back to its present version with them.
      const std::optional<TensorId> stale = LeftStale(ops, at, live);
      if (!stale) break;
      if (!planned.insert(*stale).second) return std::nullopt;
      open.push_back(*stale);
    }
    const TensorId wanted = open.back();
    open.pop_back();
    const auto writers = liveness_.Writers(wanted).first(VersionAt(wanted, at));
    if (writers.empty()) return std::nullopt;
    for (const OpId op : writers) {
      if (!ops.insert(op).second) continue;
      const Op& again = trace_.op(op);
      if (!again.recomputable) return std::nullopt;
      for (const TensorId input : again.inputs) {
        const TensorId needed = liveness_.Root(input);
        const bool in_place = Names(again.outputs, needed, liveness_);
        if (!in_place && VersionAt(needed, op) != VersionAt(needed, at)) return std::nullopt;
        if (in_place && VersionAt(needed, op) == 0) return std::nullopt;
        if ((in_place || !available(needed)) && planned.insert(needed).second) {
          open.push_back(needed);
        }
      }
    }
  }
  return std::vector<OpId>(ops.begin(), ops.end());
}

}  // namespace spillway
