// The discrete-event simulation: computes when each command of a list runs, given lanes, waits and
// shared links.
//
// A command starts when the host has issued it, its predecessor on the lane has ended and all its
// waits have happened. Its speed depends on the other commands that run. At most one command per
// lane runs, so the next event is the least of a few times and needs no heap. If events are
// simultaneous, ends come before starts, and lanes follow their order.

#ifndef SPILLWAY_SIM_ENGINE_SCHEDULE_H_
#define SPILLWAY_SIM_ENGINE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/backend.h"
#include "sim/engine/links.h"

namespace spillway::sim {

// A queue of commands: a stream of the backend, or the threads of the host that compress or
// decompress. The threads move nothing over the links.
enum class Lane : uint8_t { kCompute, kToDevice, kToHost, kCompress = kStreamCount, kDecompress };
inline constexpr size_t kLaneCount = kStreamCount + 2;

constexpr size_t Index(Lane lane) { return static_cast<size_t>(lane); }
// Returns the lane of a stream. The lanes of the streams come first, in the order of the streams.
constexpr Lane LaneOf(Stream stream) { return static_cast<Lane>(Index(stream)); }
static_assert(LaneOf(Stream::kToHost) == Lane::kToHost);

// The completion of one command: number `sequence` on its lane, counted from 1. An event with
// sequence 0 has always happened.
struct LaneEvent {
  Lane lane = Lane::kCompute;
  uint32_t sequence = 0;
};

// The intervals of each lane's commands, in issue order.
using LaneTimes = std::array<std::vector<Interval>, kLaneCount>;

struct Command {
  Duration issued;   // earliest start
  Duration nominal;  // time when it runs alone on the machine
  Bytes traffic;     // bytes moved in total, on DRAM or over the link
  uint32_t first_wait = 0;
  uint32_t wait_count = 0;
  Duration least_end = {};  // earliest end; its last kernel was issued late
  // The speed that the kernel loses while copies run, in units of 1 / kFullSpeed for each copy.
  int64_t beside_copy = 0;
  Duration gap = {};  // part of `nominal` in which it holds its lane before its reported start
  bool collective = false;  // communicates with other GPUs; several at once share their links
};

// Commands by lane, in issue order, and the events that they wait for.
struct Program {
  std::array<std::vector<Command>, kLaneCount> lanes;
  std::vector<LaneEvent> waits;
  Duration kernel_wait = {};  // from the end of a copy to the start of a kernel that waits for it
  int64_t beside_collective = 0;  // the speed that a kernel loses to a collective, as `beside_copy`
};

// Computes the times of the program's commands. REQUIRES: every wait names an event issued before
// the command that waits.
LaneTimes RunSchedule(const Program& program, const Links& links);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ENGINE_SCHEDULE_H_
