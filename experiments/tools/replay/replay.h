// Replays an allocation log on allocators: which of them serve it in how much memory, where the
// others fail, and whether reserved memory goes as it was recorded.
//
// The log is walked once, however many allocators there are; what is kept grows with the live
// blocks and with a bounded number of samples.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/replayable_allocator.h"
#include "traces/logs/memory_log.h"

namespace spillway {

// What the log asks for, whoever serves it.
struct LogSummary {
  uint64_t events = 0;   // allocations, frees and emptied caches
  uint64_t records = 0;  // up to the last that says something; events are numbered by them
  uint64_t allocations = 0;
  uint64_t peak_blocks = 0;
  Bytes peak_requested;
  // The largest sum of live bytes, each block rounded up to 512: what no allocator of that
  // granularity can do without.
  Bytes lower_bound;
  std::optional<Bytes> recorded_peak_reserved;  // where the log records segments
};

// The state of an allocator after an event.
struct ReplaySample {
  uint64_t event = 0;  // MemoryEvent::index
  int64_t time = 0;    // MemoryEvent::time
  Bytes requested;
  Bytes allocated;
  Bytes reserved;
  Bytes largest_free;
  bool operator==(const ReplaySample&) const = default;
};

// A request that an allocator could not serve.
struct FailedRequest {
  uint64_t event = 0;  // 0 also if a block of the start does not fit
  bool at_start = false;
  Bytes wanted;
  uint64_t stream = 0;
  MemoryStats stats;  // after the failure
  struct Holder {
    std::string frame;         // that asked for them, where the log says so
    Bytes size;                // as requested
    uint64_t blocks = 0;       // of this size, from this frame
    uint64_t from_start = 0;   // of these, live before the first event
    uint64_t first_event = 0;  // that allocated one of the others
    uint64_t last_event = 0;
  };
  std::vector<Holder> holders;  // of requested bytes, most bytes first, then larger blocks
};

struct ReplayResult {
  std::string allocator;
  std::optional<FailedRequest> failure;  // nullopt: everything was served
  // Until the failure, if there is one.
  Bytes peak_requested;
  Bytes peak_allocated;
  Bytes peak_reserved;
  uint64_t operations = 0;
  std::optional<int64_t> nanoseconds;  // spent in them, where a clock was given
  std::vector<ReplaySample> samples;

  // Where the log records segments and a comparison was asked for: the first event at which
  // reserved memory, the segments taken for a request, or the address of a block differ from what
  // was recorded.
  bool compared = false;
  std::optional<uint64_t> deviates_at;
  uint64_t segments = 0;  // taken during the log

  bool fits() const { return !failure.has_value(); }
  // The part of reserved memory that is lost between blocks at the worst moment.
  double fragmentation() const {
    return peak_reserved == Bytes(0) ? 0
                                     : 1 - static_cast<double>(peak_allocated.count()) /
                                               static_cast<double>(peak_reserved.count());
  }
};

struct ReplayOptions {
  // At most this many samples per allocator, spread over the log: of each stretch that one stands
  // for, the one with the most bytes requested. 0 for none.
  size_t samples = 0;
  // Nanoseconds on some clock, to time operations with; without it nothing is timed.
  std::function<int64_t()> clock;
};

struct ReplayedAllocator {
  std::string name;
  ReplayableAllocator* allocator = nullptr;  // holds nothing yet
  // It is set up like the allocator that was recorded: it gets the addresses that the driver gave
  // that one, and what it takes from the driver and where its blocks lie is compared.
  bool compare = false;
  // What went back to the driver is predicted; else it goes as recorded.
  bool predict_frees = false;
};

struct Replayed {
  LogSummary summary;
  std::vector<ReplayResult> results;  // one per allocator, in their order
};

// What was live at the start is taken over first, segment by segment
// (`ReplayableAllocator::Adopt`) where the log records them, else block by block in the order of
// addresses. A request that failed when it was recorded is tried, and given back, if no other
// follows it: the program went on without those that others follow. Throws what reading the log
// throws, and `InputError` for a log that holds more than 1 EiB.
Replayed ReplayLog(const MemoryLog& log, const std::vector<ReplayedAllocator>& allocators,
                   const ReplayOptions& options = {});

// PyTorch's allocator with the settings that the log recorded, for `MakeAllocator`.
std::string PyTorchAsRecorded(const MemoryLog& log);

// An allocator that knows the log in advance: offsets packed offline (`sim/packing/packing.h`).
// Unlike a replay its memory grows with the log. A request whose place ends beyond `capacity`
// fails. `steps` limits the effort.
std::unique_ptr<ReplayableAllocator> PlannedFor(const MemoryLog& log, Bytes capacity,
                                                std::optional<int64_t> steps = std::nullopt);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REPLAY_H_
