#include "sim/engine/schedule.h"

#include <algorithm>
#include <limits>

#include "traces/base/error.h"

namespace spillway {
namespace {

// Plays one program; all state is per lane.
class Player {
 public:
  Player(const Program& program, const Links& links) : program_(program), links_(links) {
    for (size_t s = 0; s < kLaneCount; ++s) {
      times_[s].resize(program.lanes[s].size());
      if (!program.lanes[s].empty()) lanes_ = std::max(lanes_, s + 1);
    }
    lane_speeds_.fill(kFullSpeed);
  }

  LaneTimes Run() {
    for (;;) {
      StartReady();
      const Duration next = NextEvent();
      if (next == Duration::Max()) break;
      Advance(next);
    }
    for (size_t s = 0; s < lanes_; ++s) {
      SPILLWAY_CHECK(head_[s] == program_.lanes[s].size());  // otherwise: waits in a cycle
    }
    return std::move(times_);
  }

 private:
  const Command& Head(size_t s) const { return program_.lanes[s][head_[s]]; }

  // When the head of a lane may start as far as is known now: `Duration::Max()` while it waits for
  // what has not ended.
  Duration ReadyAt(size_t s) const {
    const Command& command = Head(s);
    Duration ready = command.issued;
    for (uint32_t i = 0; i < command.wait_count; ++i) {
      const LaneEvent event = program_.waits[command.first_wait + i];
      const size_t lane = Index(event.lane);
      if (head_[lane] < event.sequence) return Duration::Max();
      if (s != Index(Lane::kCompute) || lane == s || event.sequence == 0) continue;
      ready = std::max(ready, times_[lane][event.sequence - 1].end + program_.kernel_wait);
    }
    return ready;
  }

  bool IsIdle(size_t s) const { return !running_[s] && head_[s] < program_.lanes[s].size(); }

  void StartReady() {
    bool changed = loads_changed_;
    for (size_t s = 0; s < lanes_; ++s) {
      if (!IsIdle(s) || ReadyAt(s) > now_) continue;
      const Command& command = Head(s);
      running_[s] = true;
      const Duration alone = std::max(command.nominal, command.least_end - now_);
      remaining_[s] = static_cast<Int128>(alone.picoseconds()) * kFullSpeed;
      if (s < kStreamCount) demand_[s] = Demand(command);
      times_[s][head_[s]].issued = command.issued;
      times_[s][head_[s]].start = now_ + command.gap;
      changed = true;
    }
    if (changed) {
      const Speeds speeds = links_.Share(demand_);
      std::copy(speeds.begin(), speeds.end(), lane_speeds_.begin());
    }
    loads_changed_ = false;
  }

  // In bytes per second; more than any link has where it is more than can be said.
  static int64_t Demand(const Command& command) {
    const int64_t time = command.nominal.picoseconds();
    if (time == 0) return 0;
    const Int128 demand = static_cast<Int128>(command.traffic.count()) * 1'000'000'000'000 / time;
    return static_cast<int64_t>(std::min<Int128>(demand, std::numeric_limits<int64_t>::max()));
  }

  Duration NextEvent() const {
    Duration next = Duration::Max();
    for (size_t s = 0; s < lanes_; ++s) {
      if (running_[s]) {
        // The compiler knows how to divide by a constant, and mostly there is enough for all.
        const Int128 rounded = remaining_[s] + lane_speeds_[s] - 1;
        const auto left = static_cast<int64_t>(
            lane_speeds_[s] == kFullSpeed ? rounded / kFullSpeed : rounded / lane_speeds_[s]);
        next = std::min(next, now_ + Duration::Picoseconds(left));
      } else if (IsIdle(s)) {
        next = std::min(next, ReadyAt(s));
      }
    }
    return next;
  }

  // Moves to `time` and ends the commands that have no work left.
  void Advance(Duration time) {
    const int64_t elapsed = (time - now_).picoseconds();
    now_ = time;
    for (size_t s = 0; s < lanes_; ++s) {
      if (!running_[s]) continue;
      remaining_[s] -= static_cast<Int128>(elapsed) * lane_speeds_[s];
      if (remaining_[s] > 0) continue;
      times_[s][head_[s]].end = now_;
      running_[s] = false;
      if (s < kStreamCount) {
        demand_[s] = 0;
        loads_changed_ = true;
      }
      ++head_[s];
    }
  }

  const Program& program_;
  const Links& links_;
  LaneTimes times_;
  Duration now_;
  size_t lanes_ = 0;                       // those in use
  std::array<size_t, kLaneCount> head_{};  // also the number of commands that have ended
  std::array<bool, kLaneCount> running_{};
  std::array<Int128, kLaneCount> remaining_{};  // picoseconds alone, times kFullSpeed
  Rates demand_{};
  std::array<int64_t, kLaneCount> lane_speeds_{};
  bool loads_changed_ = false;
};

}  // namespace

LaneTimes RunSchedule(const Program& program, const Links& links) {
  return Player(program, links).Run();
}

}  // namespace spillway
