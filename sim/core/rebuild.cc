#include "sim/core/rebuild.h"

#include <algorithm>
#include <set>

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

bool RebuildPlanner::CanRunAgain(OpId op, OpId at, const Available& available) const {
  const Op& again = trace_.op(op);
  if (!again.recomputable) return false;
  for (const TensorId input : again.inputs) {
    const TensorId storage = liveness_.Root(input);
    // A storage that the op updates in place must be rebuilt up to the version before the op.
    if (Names(again.outputs, storage, liveness_)) {
      if (available(storage) || VersionAt(storage, op) == 0) return false;
    } else if (VersionAt(storage, op) != VersionAt(storage, at)) {
      return false;
    }
  }
  // Its other outputs are written again; contents that have moved on since must not be on the
  // device.
  for (const TensorId output : again.outputs) {
    const TensorId storage = liveness_.Root(output);
    if (available(storage) && VersionAt(storage, op) + 1 != VersionAt(storage, at)) return false;
  }
  return true;
}

std::optional<std::vector<OpId>> RebuildPlanner::Plan(TensorId storage, OpId at,
                                                      const Available& available) const {
  std::set<OpId> ops;
  std::set<TensorId> planned{storage};
  std::vector<TensorId> open{storage};
  while (!open.empty()) {
    const TensorId wanted = open.back();
    open.pop_back();
    const auto writers = liveness_.Writers(wanted).first(VersionAt(wanted, at));
    if (writers.empty()) return std::nullopt;
    for (const OpId op : writers) {
      if (!CanRunAgain(op, at, available)) return std::nullopt;
      if (!ops.insert(op).second) continue;
      for (const TensorId input : trace_.op(op).inputs) {
        const TensorId needed = liveness_.Root(input);
        if (!available(needed) && planned.insert(needed).second) open.push_back(needed);
      }
    }
  }
  return std::vector<OpId>(ops.begin(), ops.end());
}

}  // namespace spillway
