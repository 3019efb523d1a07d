// The discrete-event core: when each of a list of commands runs, given streams, waits and shared
// links.
//
// A command starts when the host has issued it, its predecessor on the stream has ended and all its
// waits have happened; while it runs, its speed follows what else runs. At most one command per
// stream runs, so the next event is the least of a few times and needs no heap. Simultaneous
// events: ends before starts, streams in the order compute, to device, to host.

#ifndef SPILLWAY_SIM_ENGINE_SCHEDULE_H_
#define SPILLWAY_SIM_ENGINE_SCHEDULE_H_

#include <array>
#include <vector>

#include "sim/core/backend.h"
#include "sim/engine/links.h"

namespace spillway {

// Besides the streams: the threads of the host that compress and decompress, which move nothing
// over the links. Commands of a lane run in the order issued, like those of a stream.
inline constexpr size_t kLaneCount = kStreamCount + 2;
inline constexpr Stream kCompressLane{kStreamCount};
inline constexpr Stream kDecompressLane{kStreamCount + 1};
using LaneTimes = std::array<std::vector<Interval>, kLaneCount>;

struct Command {
  Duration issued;   // earliest start
  Duration nominal;  // alone on the machine
  Bytes traffic;     // bytes moved over the run, on DRAM or the link
  uint32_t first_wait = 0;
  uint32_t wait_count = 0;
  Duration least_end = {};  // not over before: the last of its kernels was issued late
};

// Commands by lane, in issue order, and the events they wait for.
struct Program {
  std::array<std::vector<Command>, kLaneCount> streams;
  std::vector<Event> waits;
};

// Plays the program. REQUIRES: every wait names an event issued before the command that waits.
LaneTimes RunSchedule(const Program& program, const Links& links);

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SCHEDULE_H_
