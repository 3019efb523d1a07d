// Allocation logs: what a program asked of its GPU allocator, in order, wherever it was recorded.
//
// A log starts with the blocks that were live before its first event. Blocks are numbered; the
// number of a freed block is used again, so that a reader's and a replay's memory grow with the
// live blocks, not with the log. Logs are read from their file each time they are walked: nothing
// but the start is kept. Errors are `InputError` of the form "path: byte 12: message" or
// "path:line:column: message".

#ifndef SPILLWAY_TRACES_LOGS_MEMORY_LOG_H_
#define SPILLWAY_TRACES_LOGS_MEMORY_LOG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/base/units.h"

namespace spillway {

struct MemoryEvent {
  enum class Kind : uint8_t {
    kAllocate,
    kFree,
    kFailed,           // a request that failed when it was recorded: nothing was held afterwards
    kEmptyCache,       // cached segments were given back; one event behind each run of such records
    kSegmentAllocate,  // recorded, not asked for: the allocator took a segment, or mapped pages
    kSegmentFree,      // recorded, not asked for: the allocator gave them back
  };

  Kind kind = Kind::kAllocate;
  uint32_t block = 0;    // kAllocate, kFree
  uint64_t index = 0;    // of the record in the file, from 0
  Bytes size;            // as requested; of a segment, its size. 0 for kEmptyCache
  uint64_t address = 0;  // as recorded, 0 if it was not
  uint64_t stream = 0;
  int64_t time = 0;  // microseconds on the recorder's clock, or a number that never descends
  std::optional<Bytes> device_free;  // kFailed: what the driver had left, where recorded
  bool operator==(const MemoryEvent&) const = default;
};

// A block that is live before the first event.
struct StartBlock {
  uint32_t block = 0;
  Bytes size;
  uint64_t address = 0;
  uint64_t stream = 0;
  Bytes taken = {};  // with what could not be split off behind it, where the log tells; else 0
  bool operator==(const StartBlock&) const = default;
};

// A segment that the allocator held before the first event. Of expandable ones, pages next to each
// other that had memory; one of no bytes says where a range of addresses begins.
struct StartSegment {
  uint64_t address = 0;
  Bytes size;
  uint64_t stream = 0;
  bool small = false;  // of PyTorch's pool for small blocks
  bool expandable = false;
  bool operator==(const StartSegment&) const = default;
};

// What was recorded of PyTorch's allocator settings.
struct PyTorchSettings {
  std::optional<Bytes> max_split_size;  // nullopt: unlimited
  std::optional<Bytes> max_non_split_rounding;
  double garbage_collection_threshold = 0;  // from 0 to below 1
  bool expandable_segments = false;
  // Divisions of powers of two by the power in MiB, those that are not 0: powers of two.
  std::vector<std::pair<int64_t, int64_t>> roundup_power2_divisions;
  bool operator==(const PyTorchSettings&) const = default;
};

struct MemoryLogStart {
  // By address. Where the log records segments they do not overlap, and each block, rounded up to
  // 512 bytes, lies in one of them and overlaps no other; else there are none.
  std::vector<StartSegment> segments;
  std::vector<StartBlock> blocks;  // by address
  bool records_segments = false;
  std::optional<PyTorchSettings> pytorch;  // where they were recorded
};

class MemoryLog {
 public:
  virtual ~MemoryLog() = default;

  // "pytorch", "rmm", "static" or "decisions".
  virtual std::string_view Format() const = 0;
  virtual const MemoryLogStart& start() const = 0;

  // What is known of the block that the record `index` allocates, for people; empty if nothing.
  virtual std::string Describe(uint64_t /*index*/) const { return {}; }

  // "file:line function" that asked for the block of record `index`; empty if not recorded. The
  // first call reads the log.
  virtual std::string Frame(uint64_t /*index*/) const { return {}; }
  // Likewise for a block of the start, by its number.
  virtual std::string StartFrame(uint32_t /*block*/) const { return {}; }

  // Calls `visit` for each event until it returns false. Throws `InputError`.
  virtual void Walk(const std::function<bool(const MemoryEvent&)>& visit) const = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOGS_MEMORY_LOG_H_
