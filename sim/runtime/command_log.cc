#include "sim/runtime/command_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/core/cost_model.h"
#include "traces/base/error.h"

namespace spillway::sim {

void CommandLog::BeginIteration() {
  timeline_.Begin();
  report_.waits.clear();
  total_ = Duration();
  newest_ = fence_ = WaitSet();
  synced_ = {};
}

void CommandLog::Begin(TimelineEntry& entry) {
  entry.first_wait = static_cast<uint32_t>(report_.waits.size());
  if (entry.nominal > kLongestIteration - total_) {
    throw InputError(fmt::format(
        "op '{}': a {} takes {}, after {} of kernels and copies before it; an iteration may take "
        "{} in all",
        trace_.op(entry.op).name, entry.kind == CommandKind::kKernel ? "kernel" : "copy",
        FormatDuration(entry.nominal), FormatDuration(total_), FormatDuration(kLongestIteration)));
  }
  total_ += entry.nominal;
}

void CommandLog::AddWaits(Stream stream, const WaitSet& set, WaitCause cause,
                          TimelineEntry& entry) {
  for (size_t other = 0; other < kStreamCount; ++other) {
    if (other == Index(stream)) continue;
    const uint32_t sequence = set.newest(static_cast<Stream>(other));
    uint32_t& synced = synced_[Index(stream)][other];
    if (sequence <= synced) continue;
    synced = sequence;
    report_.waits.push_back({{static_cast<Stream>(other), sequence}, cause});
    ++entry.wait_count;
  }
}

void CommandLog::AddFence(Stream stream, TimelineEntry& entry) {
  AddWaits(stream, std::exchange(fence_, WaitSet()), WaitCause::kFence, entry);
}

void CommandLog::Commit(TimelineEntry& entry) {
  newest_.Add(entry.event);
  // The entry has the times of the last iteration until this iteration's times are known.
  if (const TimelineEntry* last = timeline_.Replaced()) entry.interval = last->interval;
  timeline_.Append(entry);
}

bool CommandLog::EndIteration(StreamTimes times) {
  bool same = timeline_.End();
  for (TimelineEntry& entry : report_.timeline) {
    const auto& stream = times[Index(entry.event.stream)];
    SPILLWAY_CHECK(entry.event.sequence >= 1 && entry.event.sequence <= stream.size());
    entry.interval = stream[entry.event.sequence - 1];
  }
  same = times == times_ && same;
  times_ = std::move(times);
  return same;
}

}  // namespace spillway::sim
