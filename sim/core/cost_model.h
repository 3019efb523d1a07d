// What kernels and copies cost on one device, as data: the same numbers for every backend.
//
// A cost model knows nothing of contention or order; the engine adds those. Implementations are
// `TableCostModel` (recorded on hardware) and `RooflineCostModel` (analytic), both in sim/cost.

#ifndef SPILLWAY_SIM_CORE_COST_MODEL_H_
#define SPILLWAY_SIM_CORE_COST_MODEL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

// The longest iteration that is simulated, eleven days: its kernels, each the slowest of its slot,
// or its commands one after the other may add up to this. `Duration` then holds all sums of times.
inline constexpr Duration kLongestIteration = Duration::Milliseconds(1'000'000'000);

// Of a copy: to the device, or away from it, to the host or another pool outside.
enum class Direction : uint8_t { kToDevice, kToHost };

// One way to execute a slot.
struct Kernel {
  std::string algorithm;  // "winograd_nonfused"; "default" where the library offers no choice
  Duration time;          // with the device to itself
  Bytes workspace;
  bool deterministic = true;  // gives the same bits on every run
  // Part of `time`, which it does not take right behind the same algorithm of the same slot in an
  // op that is `Alike`, or in its own.
  Duration in_sequence = {};

  bool operator==(const Kernel&) const = default;
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // The batches that `Kernels` answers for, ascending; `op.batch` is the last of them. REQUIRES:
  // slot < op.slots.size().
  virtual std::vector<int64_t> Batches(const Op& op, size_t slot) const = 0;

  // The candidates for `op.slots[slot]` on `batch` samples, fastest first, ties by smaller
  // workspace and then by name; never empty. The span lives as long as the model. Safe to call from
  // several threads. REQUIRES: slot < op.slots.size(), 1 <= batch <= op.batch. Throws `InputError`
  // if the model has no entry, naming signature and batch.
  virtual std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const = 0;

  // A copy of `size` bytes between device and host with the link to itself. Those of other pools
  // are the device's to say: `CopyTimeOf`.
  virtual Duration CopyTime(Direction direction, Bytes size) const = 0;

  // Where the numbers come from, for people: "recorded on NVIDIA H200, cuDNN 9.14".
  virtual std::string Provenance() const = 0;
};

// Index of the kernel with the least workspace; the fastest of those. REQUIRES: kernels is not
// empty.
uint32_t LeastWorkspace(std::span<const Kernel> kernels);

// Index of the fastest kernel whose workspace is at most `limit`; `LeastWorkspace` if none is.
uint32_t FastestWithin(std::span<const Kernel> kernels, Bytes limit);

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_COST_MODEL_H_
