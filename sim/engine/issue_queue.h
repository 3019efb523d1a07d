// What the simulated host has issued in an iteration, by lane, and how far it has been played.
//
// It keeps the host's clock. Commands are collected and played in one go; those whose times are
// known are no longer waited for. A command of a stream is one of the stream's lane, or a run of
// several: events of streams and lanes are told apart here and nowhere else.

#ifndef SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_
#define SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/backend.h"
#include "sim/core/device.h"
#include "sim/engine/schedule.h"

namespace spillway {

class IssueQueue {
 public:
  // The device outlives the queue. Without `splits` no command of a stream is a run of several.
  IssueQueue(const Device& device, Duration kernel_wait, bool splits)
      : device_(device), links_(device), splits_(splits) {
    program_.kernel_wait = kernel_wait;
  }

  // Of this iteration, by the host's clock. Nothing is issued before its first call.
  Duration now() const { return now_; }
  // The host is busy for so long. Throws `InputError` if that makes more than 53 days.
  void Spend(Duration time);
  // The host waits until everything that was played has ended.
  void Await() { now_ = std::max(now_, drained_); }
  // Holds up the lanes before an op if the host is too far ahead of the compute stream.
  void KeepClose();

  // Has a command that is about to be added wait for an event. No other command is added meanwhile.
  void WaitFor(const LaneEvent& event, Command& command) {
    const uint32_t played = played_[Index(event.lane)];
    if (event.sequence <= played) return;  // has happened
    if (command.wait_count++ == 0) {
      command.first_wait = static_cast<uint32_t>(program_.waits.size());
    }
    program_.waits.push_back({event.lane, event.sequence - played});
  }
  void WaitFor(std::span<const Wait> waits, Command& command) {
    for (const Wait& wait : waits) WaitFor(Locate(wait.event), command);
  }
  LaneEvent Add(Lane lane, Command& command) {
    // The first command that a lane gets after a gate; others of the lane come later anyway.
    if (std::exchange(gated_[Index(lane)], false)) WaitFor(gate_, command);
    program_.lanes[Index(lane)].push_back(command);
    return Latest(lane);
  }
  // The command of the lane that was added last.
  LaneEvent Latest(Lane lane) const {
    const size_t i = Index(lane);
    return {lane, played_[i] + static_cast<uint32_t>(program_.lanes[i].size())};
  }

  // Adds a command of a stream for which the host makes `calls` library calls of this time each; it
  // can start once the first has been made.
  Event Issue(Stream stream, Command command, std::span<const Wait> waits, size_t calls,
              Duration time);
  // Makes a run of the stream's lane, its latest commands from `first` on, a command of the stream.
  Event Join(Stream stream, const LaneEvent& first) {
    if (!splits_) return {stream, first.sequence};
    auto& runs = runs_[Index(stream)];
    runs.push_back({first.sequence, Latest(first.lane).sequence});
    return {stream, static_cast<uint32_t>(runs.size())};
  }

  // Plays what has been issued since the last time. `note` sees the program, its times and when all
  // before it had ended.
  template <typename Note>
  void Drain(const Note& note) {
    LaneTimes times = RunSchedule(program_, links_);
    note(program_, times, drained_);
    Keep(std::move(times));
  }
  // The times of all commands of streams since the last call. Begins a new iteration.
  StreamTimes TakeTimes();

 private:
  // The commands of a stream's lane that are one of the stream, by sequence.
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
  // Commands of each lane whose times are known, and when the last of them ended.
  std::array<uint32_t, kLaneCount> played_{};
  Duration drained_;
  // The end of the op that the host waited for last, and the lanes that have had nothing since.
  LaneEvent gate_;
  std::array<bool, kLaneCount> gated_{};
  std::array<std::vector<Run>, kStreamCount> runs_;  // if `splits_`
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_ISSUE_QUEUE_H_
