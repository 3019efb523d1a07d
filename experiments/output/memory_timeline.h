// Computes how many bytes are held at each moment of an iteration, from a report's placement log.
//
// A block counts from the start of the kernel before which the runtime took it to the start of the
// kernel before which the runtime gave it back. `Metrics` uses the same convention: the mean of
// this curve over the iteration is exactly the average in `Metrics`, and its maximum is the peak.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_

#include <array>
#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// The bytes held from `time` until the next sample.
struct MemorySample {
  Duration time;                         // since the iteration began
  OpId op{};                             // the op of the trace at which the change was made
  uint32_t change = 0;                   // index of the change in Report::placements
  Bytes requested;                       // on the device
  Bytes allocated;                       // on the device
  Bytes reserved;                        // on the device
  std::array<Bytes, kMaxPools> outside;  // allocated in the pools outside, by number

  Bytes pinned() const { return outside[NumberOf(PoolId::kHost)]; }
  bool operator==(const MemorySample&) const = default;
};

// Returns the time of each entry of `Report::placements`, by the convention above. REQUIRES: the
// logs are complete (`report.fits()`).
std::vector<Duration> PlacementTimes(const Report& report);

// Returns one sample per change of a byte count, in the order of the changes; times never descend.
// The list begins with the blocks held from before the iteration, at time 0. REQUIRES: the logs are
// complete (`report.fits()`).
std::vector<MemorySample> MemoryTimeline(const Report& report);

// Returns the samples as CSV (RFC 4180) with the header
//   time_ms,step,op,change,tensor,change_bytes,requested_bytes,allocated_bytes,reserved_bytes,
//   pinned_bytes
// in one line, and NAME_bytes for each pool outside other than the host's. `step` and `op` are the
// op of the trace at which the change was made. `change` is allocate or free on the device, pin or
// unpin on the host, and store or discard in other pools. `tensor` is empty for a workspace and for
// a reserved block. `change_bytes` is the size of the block. Times are exact to the picosecond.
std::string FormatMemoryCsv(const Trace& trace, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_
