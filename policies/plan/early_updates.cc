#include "policies/plan/early_updates.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "traces/liveness.h"

namespace spillway::policies {

std::vector<size_t> LeavingOrder(size_t count) {
  std::vector<size_t> order;
  const size_t all = std::bit_ceil(count);
  for (size_t i = 0; i < all; ++i) {
    size_t reversed = 0;
    for (size_t bit = 1; bit < all; bit *= 2) reversed = reversed * 2 + ((i & bit) != 0 ? 1 : 0);
    if (reversed < count) order.push_back(reversed);
  }
  return order;
}

Trace WithEarlyUpdates(const Trace& trace) {
  const Liveness liveness(trace);
  // By op: the op behind which it comes. For ops that are no updates, the op itself.
  std::vector<size_t> behind(trace.ops.size());
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    behind[i] = i;
    if (trace.ops[i].phase != Phase::kUpdate) continue;
    size_t last = 0;
    for (const TensorId storage : liveness.Storages(static_cast<OpId>(i))) {
      for (const OpId use : liveness.Uses(storage)) {
        const size_t op = Index(use);
        // Updates that share a storage keep their order.
        if (op < i) last = std::max(last, behind[op]);
        if (op > i && trace.ops[op].phase != Phase::kUpdate) last = i;
      }
    }
    behind[i] = last;
  }
  std::vector<size_t> order(trace.ops.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return behind[i]; });
  Trace early = trace;
  early.saved.clear();
  std::vector<OpId> place(order.size());  // by op of the given trace: its place in `early`
  for (size_t i = 0; i < order.size(); ++i) {
    early.ops[i] = trace.ops[order[i]];
    place[order[i]] = static_cast<OpId>(i);
  }
  MoveWaits(place, early);
  // A moved update may have been the end of a hold, and a user of the tensor may now come later.
  for (size_t i = 0; i < early.tensors.size(); ++i) {
    std::optional<OpId>& held = early.tensors[i].held_until;
    if (!held) continue;
    OpId last = place[Index(*held)];
    for (const OpId use : liveness.Uses(static_cast<TensorId>(i))) {
      last = std::max(last, place[Index(use)]);
    }
    held = last;
  }
  return early;
}

}  // namespace spillway::policies
