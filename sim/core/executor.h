// What a backend that executes on real bytes offers beyond the seam: results that can be read.

#ifndef SPILLWAY_SIM_CORE_EXECUTOR_H_
#define SPILLWAY_SIM_CORE_EXECUTOR_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/backend.h"

namespace spillway {

class Executor : public Backend {
 public:
  // The loss of the last iteration that `Synchronize` completed; nullopt if the trace has none.
  virtual std::optional<float> loss() const = 0;

  // Copies the first `bytes.size()` bytes of a block, on the device or in the host pool. REQUIRES:
  // nothing issued is pending.
  virtual void Read(const Block& block, bool host, std::span<std::byte> bytes) const = 0;

  // How long each iteration took, from its first command to the end of its last; empty where there
  // is no clock.
  virtual std::vector<Duration> iteration_times() const { return {}; }
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_EXECUTOR_H_
