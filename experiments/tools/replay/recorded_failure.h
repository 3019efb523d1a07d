// The request that ran out of memory when a log was recorded: who held what, and what would have
// served the log up to and including it.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/tools/replay/replay.h"
#include "traces/base/json_writer.h"

namespace spillway {

struct RecordedFailure {
  FailedRequest request;  // as the recorded allocator stood then
  uint64_t failures = 1;  // in the log; this is the last
  std::optional<Bytes> device_free;
  Bytes segment;   // that the driver was asked for
  Bytes reserved;  // then
  Bytes lower;     // the least that the capacity can have been: the most ever reserved
  Bytes upper;     // it was less than this: reserved and the segment
  Bytes bound;     // what any allocator needs up to there
  struct Trial {
    std::string allocator;
    std::optional<Bytes> needed;  // serves the log in this; nullopt if in no memory tried
  };
  std::vector<Trial> trials;  // by need
};

// Makes an allocator of this name for a log with so much memory.
using AllocatorFactory = std::function<std::unique_ptr<ReplayableAllocator>(
    const std::string& name, const MemoryLog& log, Bytes memory)>;

// The last request that failed when the log was recorded; nullopt if none did or the log records no
// segments. Each of `names` is tried in several memories.
std::optional<RecordedFailure> FindRecordedFailure(const MemoryLog& log,
                                                   const std::vector<std::string>& names,
                                                   const AllocatorFactory& make);

// For people, and as the member "recorded_failure" of an object.
std::string FormatRecordedFailure(const RecordedFailure& failure);
void PutRecordedFailure(JsonWriter& json, const RecordedFailure& failure);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_
