// Replays an allocation log on allocators. The result says how much memory each allocator needs,
// where an allocator fails, and if reserved memory develops as it was recorded.
//
// The log is walked once for all allocators. The memory of a replay grows with the number of live
// blocks; the number of samples is bounded.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/replayable_allocator.h"
#include "sim/packing/packing.h"
#include "traces/logs/memory_log.h"

namespace spillway::lab {

// A `LogSummary` describes the requests of a log, independent of the allocator.
struct LogSummary {
  uint64_t events = 0;   // allocations, frees and emptied caches
  uint64_t records = 0;  // 1 + the largest index of an event; event numbers are record indices
  uint64_t allocations = 0;
  uint64_t peak_blocks = 0;
  Bytes peak_requested;
  Bytes unit;  // sizes are rounded up to a multiple of it
  // The largest sum of live bytes, with each block rounded up. No allocator with that unit can
  // serve the log in less memory.
  Bytes lower_bound;
  std::optional<Bytes> recorded_peak_reserved;  // set if the log records segments
  // The last request that failed when the log was recorded.
  std::optional<uint64_t> failed_event;
  Bytes failed_size;
};

// A `ReplaySample` holds the state of an allocator after an event. `largest_free` is taken at the
// end of the window of events that the sample represents.
struct ReplaySample {
  uint64_t event = 0;  // MemoryEvent::index
  int64_t time = 0;    // MemoryEvent::time
  Bytes requested;
  Bytes allocated;
  Bytes reserved;
  std::optional<Bytes> largest_free;  // nullopt: the memory is unlimited
  bool operator==(const ReplaySample&) const = default;
};

// A live block of the log.
struct HeldBlock {
  Bytes size;
  uint64_t event = 0;       // that allocated it; 0 if `from_start`
  bool from_start = false;  // it was live before the first event
  uint32_t stack = 0;       // that requested it, as `MemoryLog::stack` numbers it
};

// A `FailedRequest` is a request that an allocator could not serve.
struct FailedRequest {
  uint64_t event = 0;     // 0 if `at_start`
  bool at_start = false;  // a block that was live before the first event does not fit
  Bytes wanted;
  uint64_t stream = 0;
  MemoryStats stats;  // after the failure
  // A group of live blocks with the same size and frame.
  struct Holder {
    std::string frame;         // `RequesterOf` the blocks; empty if not recorded
    Bytes size;                // the requested size of each block
    uint64_t blocks = 0;       // the number of blocks
    uint64_t from_start = 0;   // the number of blocks that were live before the first event
    uint64_t first_event = 0;  // the first event that allocated another block of the group
    uint64_t last_event = 0;   // the last event that allocated another block of the group
  };
  std::vector<Holder> holders;  // most requested bytes first, then larger blocks
  std::vector<HeldBlock> held;  // the blocks from the start first, then in the order of events
  bool recorded = false;        // the request failed when the log was recorded, too
};

struct ReplayResult {
  std::string allocator;
  std::optional<FailedRequest> failure;  // nullopt if every request was served
  // The peaks and operations up to the failure, if there is one.
  Bytes peak_requested;
  Bytes peak_allocated;
  Bytes peak_reserved;
  uint64_t operations = 0;
  std::optional<int64_t> nanoseconds;  // time of the operations, if a clock was given
  std::vector<ReplaySample> samples;
  std::optional<Bytes> memory;  // the limit of the allocator; nullopt: unlimited

  bool compared = false;  // a comparison was requested, and the log records segments
  // If `compared`: the first event at which reserved memory, the segments taken for a request, or
  // the address of a block differ from the log, or a segment cannot be given back as recorded.
  std::optional<uint64_t> deviates_at;
  uint64_t segments = 0;  // if `compared`: the number of segments taken during the log

  bool fits() const { return !failure.has_value(); }
  // Returns whether the replay took what was recorded up to its end or to the request that failed
  // when it was recorded; nullopt if that was not compared.
  std::optional<bool> as_recorded() const {
    if (!compared || (failure && !failure->recorded)) return std::nullopt;
    return !deviates_at.has_value();
  }
  // Returns 1 - peak allocated / peak reserved memory: the part of reserved memory outside blocks.
  double fragmentation() const {
    return peak_reserved == Bytes(0) ? 0
                                     : 1 - static_cast<double>(peak_allocated.count()) /
                                               static_cast<double>(peak_reserved.count());
  }
};

// The unit of CUDA's allocators: they round sizes up to a multiple of it.
inline constexpr Bytes kCudaUnit(512);

struct ReplayOptions {
  // The maximum number of samples per allocator; 0 for none. Each sample stands for a window of
  // events and is taken at the event of the window with the most requested bytes.
  size_t samples = 0;
  bool holders = true;  // find the blocks that hold the memory at a failure
  // Returns nanoseconds on some clock. If null, operations are not timed.
  std::function<int64_t()> clock;
  Bytes unit = kCudaUnit;  // the lower bound counts in this unit, at least 1
};

struct ReplayedAllocator {
  std::string name;
  ReplayableAllocator* allocator = nullptr;  // holds nothing yet
  // The allocator is set up like the recorded one. It gets the segment addresses that the driver
  // gave to the recorded allocator. The replay compares its segments and block addresses with the
  // log.
  bool compare = false;
  // The allocator decides which segments go back to the driver; otherwise they go back as recorded.
  bool predict_frees = false;
  Bytes memory = Bytes::Unlimited();  // the limit of the allocator
};

struct Replayed {
  LogSummary summary;
  std::vector<ReplayResult> results;  // one per allocator, in their order
  // The blocks that were live at the last request that failed when the log was recorded.
  std::vector<HeldBlock> held_at_failure;
};

// Replays the log on the allocators. Blocks that are live at the start come first: segment by
// segment (`ReplayableAllocator::Adopt`) if the log records segments, else block by block in the
// order of addresses. The last request that failed when the log was recorded is an event like the
// others: it is allocated and freed in its place. The program continued without the failed requests
// before it, which are skipped. A comparison with the log ends at the failed request. Throws the
// errors of reading the log, and `InputError` if more than 1 EiB is live.
Replayed ReplayLog(const MemoryLog& log, const std::vector<ReplayedAllocator>& allocators,
                   const ReplayOptions& options = {});

// Returns the specification of PyTorch's allocator with the settings that the log recorded, for
// `MakeAllocator`. If it recorded none, they are PyTorch's defaults, with expandable segments if
// the log has some.
std::string PyTorchAsRecorded(const MemoryLog& log);

// Returns an allocator that knows the log in advance, with offsets that are packed offline
// (`sim/packing/packing.h`). Its own memory grows with the length of the log. The plan ends before
// the first request for which `capacity` does not suffice. A request that is not in the plan, or
// whose block ends beyond `capacity`, fails. If all requests are served, they are served in more
// memory, too, and in whatever best fit, first fit, CNMeM's or PyTorch's allocator takes in
// unlimited memory. The options say all but the memory.
std::unique_ptr<ReplayableAllocator> PlannedFor(const MemoryLog& log, Bytes capacity,
                                                PackingOptions options = {});

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_
