// The cost of kernels and copies on one device, as data. The numbers are the same for every
// backend.
//
// A cost model knows nothing of contention or order; the engine adds both. Implementations are
// `TableCostModel` (recorded on hardware) and `RooflineCostModel` (analytic), both in sim/cost.

#ifndef SPILLWAY_SIM_CORE_COST_MODEL_H_
#define SPILLWAY_SIM_CORE_COST_MODEL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::sim {

// The longest iteration that can be simulated, eleven days. The sum of an iteration's kernel times,
// taking the slowest kernel of each slot, must not exceed this limit, nor must the sum of its
// command times. With the limit, a `Duration` can hold any sum of times.
inline constexpr Duration kLongestIteration = Duration::Milliseconds(1'000'000'000);

// The direction of a copy: to the device, or from the device to the host or another pool outside.
enum class Direction : uint8_t { kToDevice, kToHost };

// One way to execute a slot.
struct Kernel {
  std::string algorithm;  // "winograd_nonfused"; "default" where the library offers no choice
  Duration time;          // with the device to itself
  Bytes workspace;
  bool deterministic = true;  // gives the same bits on every run
  // The part of `time` that is saved when the kernel runs directly after a kernel with the same
  // algorithm, in the same slot of the same op or of an op that is `Alike`.
  Duration in_sequence = {};

  bool operator==(const Kernel&) const = default;
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // Returns the batch sizes that `Kernels` accepts, in ascending order; the last one is `op.batch`.
  // REQUIRES: slot < op.slots.size().
  virtual std::vector<int64_t> Batches(const Op& op, size_t slot) const = 0;

  // Returns the candidates for `op.slots[slot]` on `batch` samples. The result is never empty and
  // is sorted by time, then workspace, then name, each ascending. The span lives as long as the
  // model. Safe to call from several threads. REQUIRES: slot < op.slots.size(), 1 <= batch <=
  // op.batch. Throws `InputError` that names the signature and the batch if the model has no entry.
  virtual std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const = 0;

  // Returns the time of a copy of `size` bytes between device and host when nothing else uses the
  // link. For other pools, see `CopyTimeOf` in sim/core/device.h.
  virtual Duration CopyTime(Direction direction, Bytes size) const = 0;

  // Returns where the numbers come from, as text for people: "recorded on NVIDIA H200, cuDNN 9.14".
  virtual std::string Provenance() const = 0;

  // Returns the arithmetic of the matrix products for which the times hold, as `ArithmeticOf` does:
  // by default that of the trace.
  virtual std::string ArithmeticFor(const Trace& trace) const { return ArithmeticOf(trace); }
};

// Returns the index of the kernel with the smallest workspace; if several have it, the fastest one.
// REQUIRES: kernels is not empty.
uint32_t LeastWorkspace(std::span<const Kernel> kernels);

// Returns the index of the fastest kernel whose workspace is at most `limit`; if there is none,
// returns `LeastWorkspace(kernels)`.
uint32_t FastestWithin(std::span<const Kernel> kernels, Bytes limit);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_COST_MODEL_H_
