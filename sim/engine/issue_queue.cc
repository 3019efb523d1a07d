#include "sim/engine/issue_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// A `Duration` can still hold the end of commands issued after this time.
constexpr Duration kLongestOnHost = Duration::Picoseconds(Duration::Max().picoseconds() / 2);

}  // namespace

void IssueQueue::Spend(Duration time) {
  if (time > kLongestOnHost - now_) {
    throw InputError(
        fmt::format("device '{}': issuing the commands of an iteration takes more than {}",
                    device_.name, FormatDuration(kLongestOnHost)));
  }
  now_ += time;
}

void IssueQueue::KeepClose() {
  const auto ahead = static_cast<uint32_t>(device_.launch_ahead);
  const uint32_t op = Latest(Lane::kCompute).sequence;
  if (ahead == 0 || op < 2 * ahead || op % ahead != 0) return;
  gate_ = {Lane::kCompute, op - 2 * ahead + 1};
  gated_.fill(true);
  gated_[Index(Lane::kCompute)] = false;
}

Event IssueQueue::Issue(Stream stream, Command command, std::span<const Wait> waits, size_t calls,
                        Duration time) {
  command.issued = now_ + time;
  Spend(time * static_cast<int64_t>(calls));
  WaitFor(waits, command);
  return Join(stream, Add(LaneOf(stream), command));
}

// Every command played now was issued later and so did not start before `drained_`.
void IssueQueue::Keep(LaneTimes times) {
  for (size_t s = 0; s < kLaneCount; ++s) {
    played_[s] += static_cast<uint32_t>(times[s].size());
    for (const Interval& interval : times[s]) drained_ = std::max(drained_, interval.end);
    if (times_[s].empty()) {
      times_[s] = std::move(times[s]);
    } else {
      times_[s].insert(times_[s].end(), times[s].begin(), times[s].end());
    }
    program_.lanes[s].clear();
  }
  program_.waits.clear();
}

StreamTimes IssueQueue::TakeTimes() {
  played_ = {};
  gated_ = {};
  drained_ = now_ = Duration();
  LaneTimes lanes = std::exchange(times_, {});
  StreamTimes streams;
  for (size_t s = 0; s < kStreamCount; ++s) {
    if (!splits_) streams[s] = std::move(lanes[s]);
    for (const Run& run : std::exchange(runs_[s], {})) {
      const Interval& first = lanes[s][run.first - 1];
      streams[s].push_back({first.issued, first.start, lanes[s][run.last - 1].end});
    }
  }
  return streams;
}

}  // namespace spillway::sim
