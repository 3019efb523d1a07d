// Which ops must run again to rebuild a storage that was dropped, and whether that is possible.
//
// A storage is rebuilt by running again, in trace order, all ops that had written it; their inputs
// must be at the version that they had then, on the device, on the host, or rebuildable in turn. A
// storage that one of the ops updates in place is rebuilt from its first write on, even if it is
// there; whatever else the ops write is brought back to its present version by them too, unless it
// is no longer needed. So what can be rebuilt stays so when more becomes available. And what can be
// rebuilt for its next use, from what is there then, can be for any op before that, too: from no
// less, by those of the same ops that come before it.

#ifndef SPILLWAY_SIM_RUNTIME_REBUILD_H_
#define SPILLWAY_SIM_RUNTIME_REBUILD_H_

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Keeps its working memory between calls: one thread at a time.
class RebuildPlanner {
 public:
  RebuildPlanner(const Trace& trace, const Liveness& liveness)
      : trace_(trace),
        liveness_(liveness),
        in_ops_(trace.ops.size()),
        planned_(trace.tensors.size()) {}

  // Of a storage. `available`: its contents need not be rebuilt, for they are, or will be, on
  // device or host. `live`: its contents are needed by ops yet to come, or by the next iteration.
  using Predicate = std::function<bool(TensorId storage)>;

  // The ops to run again, ascending, so that `storage` holds at op `at` what it held before it was
  // dropped; nullopt if that is not possible. REQUIRES: `available(storage)` is false.
  std::optional<std::vector<OpId>> Plan(TensorId storage, OpId at, const Predicate& available,
                                        const Predicate& live);

 private:
  // Number of ops before `op` that write the storage: the version that `op` sees.
  size_t VersionAt(TensorId storage, OpId op) const;

  // A storage that the ops leave behind at an earlier version than is needed; nullopt if none is.
  std::optional<TensorId> LeftStale(std::span<const OpId> ops, OpId at,
                                    const Predicate& live) const;

  const Trace& trace_;
  const Liveness& liveness_;
  // The number of the call that last had the op, or the storage, among those.
  std::vector<uint32_t> in_ops_, planned_;
  uint32_t call_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_REBUILD_H_
