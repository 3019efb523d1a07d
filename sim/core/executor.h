// What a backend that executes on real bytes offers beyond the seam: results that can be read.

#ifndef SPILLWAY_SIM_CORE_EXECUTOR_H_
#define SPILLWAY_SIM_CORE_EXECUTOR_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/backend.h"

namespace spillway {

// What the host keeps compressed, or kept, of one storage, when it was compressed last.
struct StoredContents {
  TensorId storage{};
  Bytes size;
  Bytes held;          // of the compressed store
  double density = 1;  // share of its 32-bit words that are not zero
};

class Executor : public Backend {
 public:
  // The loss of the last iteration that `Synchronize` completed; nullopt if the trace has none.
  virtual std::optional<float> loss() const = 0;

  // By sample, the class of the highest probability that it found in them; empty where there is no
  // loss, or where nobody looks.
  virtual std::vector<int64_t> top1() const { return {}; }

  // Copies the first `bytes.size()` bytes of a block, on the device or in a pool outside.
  // REQUIRES: nothing issued is pending.
  virtual void Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const = 0;

  // How long each iteration took, from its first command to the end of its last; empty where there
  // is no clock.
  virtual std::vector<Duration> iteration_times() const { return {}; }

  // By storage; empty where nothing is kept compressed.
  virtual std::vector<StoredContents> stored() const { return {}; }
  // Most bytes of the compressed store in use at once.
  virtual Bytes stored_peak() const { return Bytes(0); }
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_EXECUTOR_H_
