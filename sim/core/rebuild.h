// Which ops must run again to rebuild a storage that was dropped, and whether that is possible.
//
// A storage is rebuilt by running again, in trace order, all ops that had written it; their inputs
// must be at the version that they had then, on the device, on the host, or rebuildable in turn.

#ifndef SPILLWAY_SIM_CORE_REBUILD_H_
#define SPILLWAY_SIM_CORE_REBUILD_H_

#include <functional>
#include <optional>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

class RebuildPlanner {
 public:
  RebuildPlanner(const Trace& trace, const Liveness& liveness)
      : trace_(trace), liveness_(liveness) {}

  // True if the contents of a storage need not be rebuilt: they are, or will be, on device or host.
  using Available = std::function<bool(TensorId storage)>;

  // The ops to run again, ascending, so that `storage` holds at op `at` what it held before it was
  // dropped; nullopt if that is not possible. REQUIRES: `available(storage)` is false.
  std::optional<std::vector<OpId>> Plan(TensorId storage, OpId at,
                                        const Available& available) const;

 private:
  // Number of ops before `op` that write the storage: the version that `op` sees.
  size_t VersionAt(TensorId storage, OpId op) const;
  bool CanRunAgain(OpId op, OpId at, const Available& available) const;

  const Trace& trace_;
  const Liveness& liveness_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_REBUILD_H_
