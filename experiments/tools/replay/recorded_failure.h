// Analyses the request that ran out of memory when a log was recorded: which blocks held the
// memory, and which allocators would have served the log up to and including that request.

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
  FailedRequest request;  // with the state of the recorded allocator at the failure
  uint64_t failures = 1;  // the number of failed requests in the log; this is the last one
  std::optional<Bytes> device_free;  // free device memory at the failure, if recorded
  Bytes segment;                     // the size that the allocator requested from the driver
  Bytes reserved;                    // reserved memory at the failure
  Bytes lower;  // lower bound of the capacity: the most memory that was ever reserved
  Bytes upper;  // the capacity was less than this: `reserved` + `segment`
  Bytes bound;  // no allocator serves the log up to the failure in less memory
  struct Trial {
    std::string allocator;
    std::optional<Bytes> needed;  // a memory that suffices; nullopt if none that was tried does
  };
  std::vector<Trial> trials;  // ascending by `needed`; nullopt last
};

// Returns a new allocator with this name for the log, limited to `memory`.
using AllocatorFactory = std::function<std::unique_ptr<ReplayableAllocator>(
    const std::string& name, const MemoryLog& log, Bytes memory)>;

// Returns the last request that failed when the log was recorded. Returns nullopt if no request
// failed or the log records no segments. Tries each allocator of `names` with several sizes of
// memory.
std::optional<RecordedFailure> FindRecordedFailure(const MemoryLog& log,
                                                   const std::vector<std::string>& names,
                                                   const AllocatorFactory& make);

// Returns the failure as a text for people.
std::string FormatRecordedFailure(const RecordedFailure& failure);
// Adds the failure as the member "recorded_failure" of the object that `json` is writing.
void PutRecordedFailure(JsonWriter& json, const RecordedFailure& failure);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_
