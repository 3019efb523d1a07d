// The commands of an iteration as they are issued: their waits, and in the end their times.
//
// It leaves out waits that a stream has made already, holds the fence that a policy asked for until
// the next kernel, and is where the timeline of a report is written. Owned by the runtime.

#ifndef SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_
#define SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_

#include <array>
#include <span>

#include "sim/core/backend.h"
#include "sim/core/report.h"
#include "sim/runtime/hazard_map.h"
#include "sim/runtime/repeated_log.h"

namespace spillway {

class CommandLog {
 public:
  // Writes `report.timeline` and `report.waits`. The trace and the report outlive the log.
  CommandLog(const Trace& trace, Report& report)
      : trace_(trace), report_(report), timeline_(report.timeline) {}

  void BeginIteration();

  // Commands issued in this iteration.
  size_t issued() const { return timeline_.written(); }

  // The next kernel will wait for everything issued so far.
  void Fence() { fence_ = newest_; }

  // For each command: `Begin`, then `AddWaits` any number of times, then `Commit`. Throws
  // `InputError` with the op if the commands of the iteration add up to more than
  // `kLongestIteration`.
  void Begin(TimelineEntry& entry);
  // Makes the entry, on `stream`, wait for a set of events; `stream`'s own order needs no waits.
  void AddWaits(Stream stream, const WaitSet& set, WaitCause cause, TimelineEntry& entry);
  void AddFence(TimelineEntry& entry);
  std::span<const Wait> WaitsOf(const TimelineEntry& entry) const {
    return std::span(report_.waits).subspan(entry.first_wait, entry.wait_count);
  }
  void Commit(TimelineEntry& entry);

  // Puts the backend's times into the timeline. True if the commands and their times equal those of
  // the last iteration.
  bool EndIteration(StreamTimes times);
  // Ends the log of an iteration that did not come to its end.
  void Abandon() { timeline_.End(); }

 private:
  const Trace& trace_;
  Report& report_;
  RepeatedLog<TimelineEntry> timeline_;
  Duration total_;  // of the commands of this iteration, each alone
  WaitSet newest_;  // last command of each stream
  WaitSet fence_;
  // synced_[s][t]: the newest command of stream t that stream s has waited for.
  std::array<std::array<uint32_t, kStreamCount>, kStreamCount> synced_{};
  StreamTimes times_;  // of the last iteration
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_
