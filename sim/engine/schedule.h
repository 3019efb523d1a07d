// The discrete-event core: when each of a list of commands runs, given lanes, waits and shared
// links.
//
// A command starts when the host has issued it, its predecessor on the lane has ended and all its
// waits have happened; while it runs, its speed follows what else runs. At most one command per
// lane runs, so the next event is the least of a few times and needs no heap. Simultaneous events:
// ends before starts, lanes in their order.

#ifndef SPILLWAY_SIM_ENGINE_SCHEDULE_H_
#define SPILLWAY_SIM_ENGINE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/backend.h"
#include "sim/engine/links.h"

namespace spillway {

// What commands queue on: the streams of the seam, and the threads of the host that compress and
// decompress, which move nothing over the links.
enum class Lane : uint8_t { kCompute, kToDevice, kToHost, kCompress = kStreamCount, kDecompress };
inline constexpr size_t kLaneCount = kStreamCount + 2;

constexpr size_t Index(Lane lane) { return static_cast<size_t>(lane); }
// The lanes of the streams come first, in their order.
constexpr Lane LaneOf(Stream stream) { return static_cast<Lane>(Index(stream)); }
static_assert(LaneOf(Stream::kToHost) == Lane::kToHost);

// The completion of one command: the `sequence`-th on its lane, from 1. 0 has always happened.
struct LaneEvent {
  Lane lane = Lane::kCompute;
  uint32_t sequence = 0;
};

// The intervals of each lane's commands, in issue order.
using LaneTimes = std::array<std::vector<Interval>, kLaneCount>;

struct Command {
  Duration issued;   // earliest start
  Duration nominal;  // alone on the machine
  Bytes traffic;     // bytes moved over the run, on DRAM or the link
  uint32_t first_wait = 0;
  uint32_t wait_count = 0;
  Duration least_end = {};  // not over before: the last of its kernels was issued late
  Duration gap = {};  // part of `nominal`: it has its lane for so long before it is seen to start
};

// Commands by lane, in issue order, and the events they wait for.
struct Program {
  std::array<std::vector<Command>, kLaneCount> lanes;
  std::vector<LaneEvent> waits;
  Duration kernel_wait = {};  // from the end of a copy to the start of a kernel that waits for it
};

// Plays the program. REQUIRES: every wait names an event issued before the command that waits.
LaneTimes RunSchedule(const Program& program, const Links& links);

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SCHEDULE_H_
