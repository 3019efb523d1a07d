// What a replay found, as rows, tables, JSON, CSV and counters over time.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/tools/replay/recorded_failure.h"
#include "experiments/tools/replay/replay.h"

namespace spillway {

// What would have served a request that failed, found by trying.
struct Remedy {
  std::string allocator;            // that failed
  std::vector<std::string> others;  // allocators that serve the whole log in the same memory
  std::optional<Bytes> memory;      // that this allocator serves the log in; not always the least
};

// One row per allocator.
Columns<ReplayResult> ReplayColumns(const Replayed& replayed);

// {"schema": "spillway.replay/v1", "log": .., "rows": [..], "out_of_memory": [..]}; the last only
// with remedies.
std::string FormatReplayJson(const MemoryLog& log, const Replayed& replayed,
                             const std::optional<std::vector<Remedy>>& remedies,
                             const std::optional<RecordedFailure>& recorded = std::nullopt);
// For people.
std::string FormatReplayTable(const MemoryLog& log, const Replayed& replayed);
// For each allocator that failed: who holds the memory, how much is free but scattered, what would
// have served the request. `memory` is what the allocators had.
std::string FormatOutOfMemory(const MemoryLog& log, const Replayed& replayed,
                              const std::vector<Remedy>& remedies, Bytes memory);

// allocator,event,time_us,requested_bytes,allocated_bytes,reserved_bytes,largest_free_bytes,
// fragmentation in one line: a line per sample.
std::string FormatReplayCsv(const Replayed& replayed);

// What the file says about its origin.
struct ReplayTraceOrigin {
  std::string version, log, run_sha256;
};

// The samples as counters in the Chrome/Perfetto format, one process per allocator.
std::string FormatReplayTrace(const Replayed& replayed, const ReplayTraceOrigin& origin);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_REPORT_H_
