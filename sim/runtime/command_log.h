// The commands of an iteration, with their waits and finally their times.
//
// The log omits waits that a stream has already made, holds a fence that the policy asked for until
// the next kernel, and writes the timeline of the report. The runtime owns it.

#ifndef SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_
#define SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_

#include <array>
#include <span>

#include "sim/core/backend.h"
#include "sim/core/report.h"
#include "sim/runtime/hazard_map.h"
#include "sim/runtime/repeated_log.h"

namespace spillway::sim {

class CommandLog {
 public:
  // The log writes `report.timeline` and `report.waits`. The trace and the report outlive the log.
  CommandLog(const Trace& trace, Report& report)
      : trace_(trace), report_(report), timeline_(report.timeline) {}

  void BeginIteration();

  // Returns the number of commands issued in this iteration.
  size_t issued() const { return timeline_.written(); }

  // Makes the next kernel wait for every command issued so far, or for one event.
  void Fence() { fence_ = newest_; }
  void Fence(Event event) { fence_.Add(event); }
  // Returns the last command of the stream.
  Event Newest(Stream stream) const { return {stream, newest_.newest(stream)}; }

  // Adds a command: first `Begin`, then `AddWaits` any number of times, then `Commit`. `Begin`
  // throws `InputError` that names the op if the nominal times of the iteration's commands add up
  // to more than `kLongestIteration`.
  void Begin(TimelineEntry& entry);
  // Makes the entry, a command on `stream`, wait for a set of events. Events on `stream` itself
  // need no wait, because its commands run in order.
  void AddWaits(Stream stream, const WaitSet& set, WaitCause cause, TimelineEntry& entry);
  void AddFence(Stream stream, TimelineEntry& entry);
  std::span<const Wait> WaitsOf(const TimelineEntry& entry) const {
    return std::span(report_.waits).subspan(entry.first_wait, entry.wait_count);
  }
  void Commit(TimelineEntry& entry);

  // Puts the backend's times into the timeline. Returns true iff the commands and their times equal
  // the last iteration's.
  bool EndIteration(StreamTimes times);
  // Ends the log of an iteration that was not completed.
  void Abandon() { timeline_.End(); }

 private:
  const Trace& trace_;
  Report& report_;
  RepeatedLog<TimelineEntry> timeline_;
  Duration total_;  // sum of the nominal times of this iteration's commands
  WaitSet newest_;  // the last command of each stream
  WaitSet fence_;
  // synced_[s][t] is the newest command of stream t that stream s has waited for.
  std::array<std::array<uint32_t, kStreamCount>, kStreamCount> synced_{};
  StreamTimes times_;  // the last iteration's times
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_COMMAND_LOG_H_
