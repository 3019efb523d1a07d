// Analyses the request that ran out of memory when a log was recorded: which blocks held the
// memory, which allocators serve the log with that request in it, and which remedies help.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/tools/replay/holders.h"
#include "experiments/tools/replay/remedies.h"
#include "experiments/tools/replay/replay.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {

// The record of the last request of a log that failed.
struct RecordedFailure {
  uint64_t event = 0;
  Bytes wanted;
  uint64_t failures = 0;             // the number of failed requests in the log; this is the last
  std::optional<Bytes> device_free;  // free device memory at the failure, if recorded
  // The largest of the blocks whose freeing was completed between the last allocation and the
  // failure: that is when PyTorch waits for the streams that still use them.
  Bytes awaited;
  Bytes segment;   // the size that the allocator requested from the driver
  Bytes reserved;  // reserved memory at the failure
  Bytes lower;     // lower bound of the capacity: the most memory that was ever reserved
  Bytes upper;     // the capacity was less than this: `reserved` + `segment`

  // Returns the memory that the recorded allocator certainly had, and in which the request failed.
  Bytes capacity() const { return std::min(lower, upper - Bytes(1)); }
  // Returns true iff the device had memory left, so that the limit of the process was reached.
  bool limited() const { return device_free && *device_free >= segment; }
};

// Returns nullopt if no request failed or the log records no segments.
std::optional<RecordedFailure> ReadRecordedFailure(const MemoryLog& log);

// The analysis of a failure. It was computed for a certain memory.
struct FailureAnalysis {
  RecordedFailure recorded;
  Bytes memory;        // the allocators' memory
  bool given = false;  // the user gave `memory`; otherwise it is the recorded `capacity`
  std::optional<MemoryStats> stats;  // the recorded allocator's; nullopt: the replay differs
  Bytes bound;                       // no allocator serves the log in less memory
  const Stack* stack = nullptr;      // the calls that made the failed request; may be empty
  std::vector<FailedRequest::Holder> holders;
  std::vector<HolderGroup> groups;
  std::vector<Caller> callers;
  struct Trial {
    std::string allocator;
    std::optional<Bytes> needed;  // a memory that suffices; nullopt if none that was tried does
  };
  std::vector<Trial> trials;            // ascending by `needed`; nullopt last
  std::vector<FailureRemedy> remedies;  // empty if the recorded allocator serves the log

  // Returns true iff the request failed only since a block was not free yet: the recorded allocator
  // would have served it directly afterwards.
  bool awaited() const { return recorded.awaited > Bytes() && Fits(NeededBy("pytorch")) == true; }
  // Returns a memory in which an allocator serves the log, or nullopt if it is not known.
  std::optional<Bytes> NeededBy(const std::string& allocator) const;
  // Returns true or false if an allocator that needs this memory fits or does not; nullopt if that
  // depends on what the recorded capacity was.
  std::optional<bool> Fits(std::optional<Bytes> needed) const;
};

// Analyses a failure of the log for allocators with `memory`, or with the recorded capacity. Tries
// each allocator of `names` with several sizes of memory. The sizes of `FailureAnalysis::bound` are
// rounded up to multiples of `unit`. The log must outlive the result.
FailureAnalysis AnalyseFailure(const MemoryLog& log, const RecordedFailure& recorded,
                               std::optional<Bytes> memory, const std::vector<std::string>& names,
                               const AllocatorFactory& make, const std::vector<Card>& cards,
                               Bytes unit);

// Return the analysis as texts for people, at most 80 characters wide: the failure and what helps,
// and who held the memory. The second leaves out what the allocators `rows` need. With `frames`,
// each group of blocks is followed by the calls that led to it.
std::string FormatFailure(const FailureAnalysis& failure);
std::string FormatHolders(const FailureAnalysis& failure, const std::vector<std::string>& rows,
                          bool frames);
// Adds the analysis as the member "recorded_failure" of the object that `json` is writing.
void PutFailure(JsonWriter& json, const FailureAnalysis& failure);
// Returns the text with a line break instead of a space wherever a line would have more than 80
// characters. `indent` spaces begin each line but the first.
std::string Wrap(std::string_view text, size_t indent = 0);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_RECORDED_FAILURE_H_
