// The interface of backends that execute on real bytes. In addition to `Backend`, results can be
// read.

#ifndef SPILLWAY_SIM_CORE_EXECUTOR_H_
#define SPILLWAY_SIM_CORE_EXECUTOR_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/backend.h"

namespace spillway::sim {

// The size of one storage in the host's compressed store when it was last compressed.
struct StoredContents {
  TensorId storage{};
  Bytes size;
  Bytes held;          // bytes of the compressed store in use
  double density = 1;  // the share of its 32-bit words that are not zero
};

class Executor : public Backend {
 public:
  // Returns the loss of the last iteration that `Synchronize` completed; nullopt if the trace has
  // no loss.
  virtual std::optional<float> loss() const = 0;

  // Returns for each sample the index of the class with the highest probability. Empty if the trace
  // has no loss or if the executor was not asked to keep the classes.
  virtual std::vector<int64_t> top1() const { return {}; }

  // Copies the first `bytes.size()` bytes of a block, which lies on the device or in a pool
  // outside, to `bytes`. REQUIRES: no issued command is pending.
  virtual void Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const = 0;

  // Returns the time of each iteration, from the start of its first command to the end of its last.
  // Empty if the backend has no clock.
  virtual std::vector<Duration> iteration_times() const { return {}; }

  // Returns one entry for each storage that was compressed; empty if no storage is kept compressed.
  virtual std::vector<StoredContents> stored() const { return {}; }
  // Returns the largest number of bytes of the compressed store that were in use at once.
  virtual Bytes stored_peak() const { return Bytes(0); }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_EXECUTOR_H_
