// The commands that the simulated host has issued in an iteration, by lane, and how far they have
// been played.
//
// The queue keeps the host's clock. Commands are collected and played in one go. Waits for commands
// with known times are dropped. A command of a stream is one command of the stream's lane, or a run
// of several. Only this class distinguishes events of streams from events of lanes.

#ifndef SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_
#define SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/backend.h"
#include "sim/core/device.h"
#include "sim/engine/schedule.h"

namespace spillway::sim {

class IssueQueue {
 public:
  // Without `splits`, each command of a stream is one command of its lane. The device outlives the
  // queue.
  IssueQueue(const Device& device, Duration kernel_wait, bool splits)
      : device_(device), links_(device), splits_(splits) {
    program_.kernel_wait = kernel_wait;
    program_.beside_collective =
        std::llround(device.cluster ? device.cluster->beside * kFullSpeed : 0);
  }

  // Returns the host's time in this iteration. It is 0 until the host makes its first call.
  Duration now() const { return now_; }
  // Makes the host busy for `time`. Throws `InputError` if the host's time exceeds 53 days.
  void Spend(Duration time);
  // Makes the host wait until every played command has ended.
  void Await() { now_ = std::max(now_, drained_); }
  // Holds up the lanes before an op if the host is too far ahead of the compute stream.
  void KeepClose();

  // Makes a command wait for an event. The command must be added before any other command.
  void WaitFor(const LaneEvent& event, Command& command) {
    const uint32_t played = played_[Index(event.lane)];
    if (event.sequence <= played) return;  // the event has happened
    if (command.wait_count++ == 0) {
      command.first_wait = static_cast<uint32_t>(program_.waits.size());
    }
    program_.waits.push_back({event.lane, event.sequence - played});
  }
  void WaitFor(std::span<const Wait> waits, Command& command) {
    for (const Wait& wait : waits) WaitFor(Locate(wait.event), command);
  }
  LaneEvent Add(Lane lane, Command& command) {
    // The first command of a lane after a gate waits for it; later commands of the lane follow
    // anyway.
    if (std::exchange(gated_[Index(lane)], false)) WaitFor(gate_, command);
    program_.lanes[Index(lane)].push_back(command);
    return Latest(lane);
  }
  // Returns the event of the command added last to the lane.
  LaneEvent Latest(Lane lane) const {
    const size_t i = Index(lane);
    return {lane, played_[i] + static_cast<uint32_t>(program_.lanes[i].size())};
  }

  // Adds a command of a stream. The host makes `calls` library calls of `time` each for it. The
  // command can start after the first call.
  Event Issue(Stream stream, Command command, std::span<const Wait> waits, size_t calls,
              Duration time);
  // Makes one command of the stream out of the latest commands of its lane, from `first` on.
  Event Join(Stream stream, const LaneEvent& first) {
    if (!splits_) return {stream, first.sequence};
    auto& runs = runs_[Index(stream)];
    runs.push_back({first.sequence, Latest(first.lane).sequence});
    return {stream, static_cast<uint32_t>(runs.size())};
  }

  // Plays the commands issued since the last call. `note` gets the program, its times, and the time
  // at which all earlier commands had ended.
  template <typename Note>
  void Drain(const Note& note) {
    LaneTimes times = RunSchedule(program_, links_);
    note(program_, times, drained_);
    Keep(std::move(times));
  }
  // Returns the times of all commands of streams since the last call, and begins a new iteration.
  StreamTimes TakeTimes();

 private:
  // The commands of a lane, by sequence, that form one command of the stream.
  struct Run {
    uint32_t first = 0;
    uint32_t last = 0;
  };

  void Keep(LaneTimes times);
  LaneEvent Locate(const Event& event) const {
    const Lane lane = LaneOf(event.stream);
    if (!splits_) return {lane, event.sequence};
    return {lane, runs_[Index(lane)][event.sequence - 1].last};
  }

  const Device& device_;
  const Links links_;
  const bool splits_;
  Program program_;
  LaneTimes times_;
  Duration now_;
  // The number of commands of each lane with known times, and the end of the last one.
  std::array<uint32_t, kLaneCount> played_{};
  Duration drained_;
  // The last op whose end the host waited for, and the lanes without a command since.
  LaneEvent gate_;
  std::array<bool, kLaneCount> gated_{};
  std::array<std::vector<Run>, kStreamCount> runs_;  // only with `splits`
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_
