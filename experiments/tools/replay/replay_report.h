// Formats the results of a replay as rows, tables, JSON, CSV and counters over time.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/tools/replay/recorded_failure.h"
#include "experiments/tools/replay/replay.h"

namespace spillway::lab {

// A `Remedy` holds alternatives for an allocator that failed. They were found by trial replays.
struct Remedy {
  std::string allocator;            // the allocator that failed
  std::vector<std::string> others;  // allocators that serve the whole log in the same memory
  std::optional<Bytes> memory;  // a memory in which `allocator` serves the log; may not be minimal
};

// Returns the columns of a table with one row per allocator. `failure` is the analysis of a request
// that failed when the log was recorded, or nullptr. The columns refer to both arguments.
Columns<ReplayResult> ReplayColumns(const Replayed& replayed,
                                    const FailureAnalysis* failure = nullptr);

// Returns {"schema": "spillway.replay/v1", "log": .., "rows": [..], "out_of_memory": [..]}. The
// member "out_of_memory" exists only if `remedies` is given.
std::string FormatReplayJson(const MemoryLog& log, const Replayed& replayed,
                             const std::optional<std::vector<Remedy>>& remedies,
                             const FailureAnalysis* failure = nullptr);
// Returns the results as a text for people. With `failure`, it is at most 80 characters wide.
std::string FormatReplayTable(const MemoryLog& log, const Replayed& replayed,
                              const FailureAnalysis* failure = nullptr);
// Returns a text for people about each allocator that failed. It says which blocks hold the memory,
// how much memory is free but scattered, and which alternatives serve the request. `memory` is the
// memory that the allocators had.
std::string FormatOutOfMemory(const MemoryLog& log, const Replayed& replayed,
                              const std::vector<Remedy>& remedies, Bytes memory);

// Returns CSV with one line per sample. The columns are allocator, event, time_us, requested_bytes,
// allocated_bytes, reserved_bytes, largest_free_bytes and fragmentation.
std::string FormatReplayCsv(const Replayed& replayed);

// A `ReplayTraceOrigin` holds the origin that a trace file states.
struct ReplayTraceOrigin {
  std::string version, log, run_sha256;
};

// Returns the samples as counters in the Chrome/Perfetto format, with one process per allocator.
std::string FormatReplayTrace(const Replayed& replayed, const ReplayTraceOrigin& origin);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_
