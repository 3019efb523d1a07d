#include "sim/engine/schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// The state of playing one program; all state is per lane.
class Player {
 public:
  Player(const Program& program, const Links& links) : program_(program), links_(links) {
    for (size_t s = 0; s < kLaneCount; ++s) {
      times_[s].resize(program.lanes[s].size());
      if (!program.lanes[s].empty()) lanes_ = std::max(lanes_, s + 1);
    }
  }

  LaneTimes Run() {
    for (;;) {
      const Duration next = StartReady();
      if (next == Duration::Max()) break;
      now_ = next;
      EndDone();
    }
    for (size_t s = 0; s < lanes_; ++s) {
      SPILLWAY_CHECK(head_[s] == program_.lanes[s].size());  // otherwise, commands wait in a cycle
    }
    return std::move(times_);
  }

 private:
  // A command that runs. It ends at `end` if its speed does not change.
  struct Running {
    Int128 work = 0;  // work left at `since`: picoseconds alone, times kFullSpeed
    Duration since;
    Duration end;
    int64_t speed = kFullSpeed;
  };

  // Returns the earliest start of the command at the head of a lane. Returns `Duration::Max()`
  // while it waits for a command that has not ended.
  Duration ReadyAt(size_t s, const Command& command) const {
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

  // Starts the commands that are ready. Returns when the next command ends or may start.
  Duration StartReady() {
    Duration next = Duration::Max();
    for (size_t s = 0; s < lanes_; ++s) {
      if (is_running_[s] || head_[s] == program_.lanes[s].size()) continue;
      const Command& command = program_.lanes[s][head_[s]];
      const Duration ready = ReadyAt(s, command);
      if (ready > now_) {
        next = std::min(next, ready);
        continue;
      }
      is_running_[s] = true;
      const Duration alone = std::max(command.nominal, command.least_end - now_);
      running_[s] = {static_cast<Int128>(alone.picoseconds()) * kFullSpeed, now_, now_ + alone};
      times_[s][head_[s]].issued = command.issued;
      times_[s][head_[s]].start = now_ + command.gap;
      if (s >= kStreamCount) continue;
      demand_[s] = Demand(command);
      if (s == Index(Stream::kCompute)) beside_copy_ = command.beside_copy;
      is_collective_[s] = command.collective;
      if (command.collective) ++collectives_;
      loads_changed_ = true;
    }
    if (std::exchange(loads_changed_, false)) ShareLinks();
    for (size_t s = 0; s < lanes_; ++s) {
      if (is_running_[s]) next = std::min(next, running_[s].end);
    }
    return next;
  }

  // Returns the demand in bytes per second, limited to the largest int64_t, a rate above any
  // link's.
  static int64_t Demand(const Command& command) {
    const int64_t time = command.nominal.picoseconds();
    if (time == 0) return 0;
    const Int128 demand = static_cast<Int128>(command.traffic.count()) * 1'000'000'000'000 / time;
    return static_cast<int64_t>(std::min<Int128>(demand, std::numeric_limits<int64_t>::max()));
  }

  // Applies the speeds of the current load from now on.
  void ShareLinks() {
    Speeds speeds = links_.Share(demand_, beside_copy_);
    if (collectives_ > 0) ShareCollectives(speeds);
    for (size_t s = 0; s < std::min(lanes_, kStreamCount); ++s) {
      Running& command = running_[s];
      if (!is_running_[s] || command.speed == speeds[s]) continue;
      command.work -= static_cast<Int128>((now_ - command.since).picoseconds()) * command.speed;
      command.since = now_;
      command.speed = speeds[s];
      const Int128 left = (command.work + command.speed - 1) / command.speed;
      command.end = now_ + Duration::Picoseconds(static_cast<int64_t>(left));
    }
  }

  // Divides the links to other GPUs among the collectives that run, which other kernels make room
  // for.
  void ShareCollectives(Speeds& speeds) const {
    for (size_t s = 0; s < std::min(lanes_, kStreamCount); ++s) {
      if (!is_running_[s]) continue;
      if (is_collective_[s]) {
        speeds[s] = std::max<int64_t>(1, speeds[s] / collectives_);
      } else if (s == Index(Lane::kCompute) || IsLane(static_cast<Stream>(s))) {
        speeds[s] = std::max<int64_t>(1, speeds[s] - program_.beside_collective);
      }
    }
  }

  void EndDone() {
    for (size_t s = 0; s < lanes_; ++s) {
      if (!is_running_[s] || running_[s].end > now_) continue;
      times_[s][head_[s]].end = now_;
      is_running_[s] = false;
      ++head_[s];
      if (std::exchange(is_collective_[s], false)) --collectives_;
      if (s >= kStreamCount) continue;
      demand_[s] = 0;
      loads_changed_ = true;
    }
  }

  const Program& program_;
  const Links& links_;
  LaneTimes times_;
  Duration now_;
  size_t lanes_ = 0;                       // number of lanes in use
  std::array<size_t, kLaneCount> head_{};  // number of ended commands
  std::array<bool, kLaneCount> is_running_{};
  std::array<Running, kLaneCount> running_{};
  Rates demand_{};
  std::array<bool, kLaneCount> is_collective_{};
  int64_t collectives_ = 0;  // number of them that run
  int64_t beside_copy_ = 0;  // of the latest kernel
  bool loads_changed_ = false;
};

}  // namespace

LaneTimes RunSchedule(const Program& program, const Links& links) {
  return Player(program, links).Run();
}

}  // namespace spillway::sim
