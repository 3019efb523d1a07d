// Memory over one iteration: how many bytes are held at each moment, from a report's placement log.
//
// A block counts from the start of the kernel before which the runtime took it to the start of the
// kernel before which it was given back. That is the convention of the averages in `Metrics`: the
// integral of this curve over the iteration is exactly those averages, its maximum the peaks.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_

#include <array>
#include <string>
#include <vector>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// What is held from `time` until the next sample.
struct MemorySample {
  Duration time;        // since the iteration began
  OpId op{};            // the op of the trace at which the change was made
  uint32_t change = 0;  // index of the change in Report::placements
  Bytes requested;      // on the device, as are the next two
  Bytes allocated;
  Bytes reserved;
  std::array<Bytes, kMaxPools> outside;  // allocated in the pools outside, by number

  Bytes pinned() const { return outside[NumberOf(PoolId::kHost)]; }
  bool operator==(const MemorySample&) const = default;
};

// When each of `Report::placements` was made, by that convention. REQUIRES: as below.
std::vector<Duration> PlacementTimes(const Report& report);

// One sample per change of a byte count, in the order in which the changes were made; times never
// descend. What is held from before the iteration opens the list, at time 0. REQUIRES: the logs are
// complete (`report.fits()`).
std::vector<MemorySample> MemoryTimeline(const Report& report);

// The samples as CSV (RFC 4180) with the header
//   time_ms,step,op,change,tensor,change_bytes,requested_bytes,allocated_bytes,reserved_bytes,
//   pinned_bytes
// in one line, and NAME_bytes for each pool outside besides the host's. `step` and `op` say at
// which op of the trace the change was made; `change` is allocate or free, on the host pin or
// unpin, in other pools store or discard; `tensor` is empty for a workspace and for a reserved
// block; `change_bytes` is the size of the block. Times are exact to the picosecond.
std::string FormatMemoryCsv(const Trace& trace, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_MEMORY_TIMELINE_H_
