// Allocation logs: the requests of a program to its GPU allocator, in order, from any recorder.
//
// A log starts with the blocks that were live before its first event. Blocks are numbered. The
// number of a freed block is used again, so the memory of a reader and of a replay grows with the
// live blocks, not with the log. A log is read from its file each time it is walked; only the start
// is kept. Errors are `InputError` of the form "path: byte 12: message" or "path:line:column:
// message".

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
#include "traces/logs/stack.h"

namespace spillway::traces {

struct MemoryEvent {
  enum class Kind : uint8_t {
    kAllocate,
    kFree,
    kFailed,           // a request that failed when it was recorded; it allocated nothing
    kEmptyCache,       // cached segments were released; one event after each run of such records
    kSegmentAllocate,  // recorded, not requested: the allocator took a segment or mapped pages
    kSegmentFree,      // recorded, not requested: the allocator released a segment or pages
  };

  Kind kind = Kind::kAllocate;
  uint32_t block = 0;    // kAllocate, kFree
  uint64_t index = 0;    // the record's number in the file, from 0
  Bytes size;            // requested bytes; of a segment its size; 0 for kEmptyCache
  uint64_t address = 0;  // as recorded; 0 if not recorded
  uint64_t stream = 0;
  int64_t time = 0;  // microseconds on the recorder's clock, or a number that never descends
  std::optional<Bytes> device_free;  // kFailed: free memory of the driver, if recorded
  bool operator==(const MemoryEvent&) const = default;
};

// A block that is live before the first event.
struct StartBlock {
  uint32_t block = 0;
  Bytes size;
  uint64_t address = 0;
  uint64_t stream = 0;
  Bytes taken = {};  // bytes with the unsplit rest behind it, if known; otherwise 0
  bool operator==(const StartBlock&) const = default;
};

// A segment that the allocator held before the first event. An expandable segment is a row of
// adjacent pages that had memory. An expandable segment of 0 bytes marks the beginning of a range
// of addresses.
struct StartSegment {
  uint64_t address = 0;
  Bytes size;
  uint64_t stream = 0;
  bool small = false;  // in PyTorch's pool for small blocks
  bool expandable = false;
  bool operator==(const StartSegment&) const = default;
};

// The recorded settings of PyTorch's allocator.
struct PyTorchSettings {
  std::optional<Bytes> max_split_size;  // nullopt: unlimited
  std::optional<Bytes> max_non_split_rounding;
  std::optional<Bytes> large_segment_size;
  double garbage_collection_threshold = 0;  // from 0 to below 1
  bool expandable_segments = false;
  // (power in MiB, number of divisions). Both are powers of two; entries with 0 divisions are left
  // out.
  std::vector<std::pair<int64_t, int64_t>> roundup_power2_divisions;
  std::vector<std::string> not_modelled;  // other settings in effect, such as "backend:NAME"
  bool operator==(const PyTorchSettings&) const = default;
};

struct MemoryLogStart {
  // By address. If the log records segments, the segments do not overlap. Each block, rounded up to
  // 512 bytes, lies in one segment and overlaps no other block. Otherwise this list is empty.
  std::vector<StartSegment> segments;
  std::vector<StartBlock> blocks;  // by address
  bool records_segments = false;
  std::optional<PyTorchSettings> pytorch;  // nullopt: not recorded
};

class MemoryLog {
 public:
  virtual ~MemoryLog() = default;

  // Returns "pytorch", "rmm", "static" or "decisions".
  virtual std::string_view Format() const = 0;
  virtual const MemoryLogStart& start() const = 0;

  // Returns a description for people of the block that record `index` allocates, or an empty
  // string.
  virtual std::string Describe(uint64_t /*index*/) const { return {}; }

  // Returns the index of the last request that failed when it was recorded, or nullopt.
  virtual std::optional<uint64_t> LastFailure() const { return std::nullopt; }

  // Returns a sentence for people on which part of the file is read, or an empty string.
  virtual std::string Remark() const { return {}; }

  // Returns the number of the stack that made the request of record `index`. 0 means that none was
  // recorded, and stands for an empty stack. The first call reads the log.
  virtual uint32_t StackOf(uint64_t /*index*/) const { return 0; }
  // Returns the number of the stack that requested a block of the start, by the block's number.
  virtual uint32_t StackOfStart(uint32_t /*block*/) const { return 0; }
  // Returns a stack by its number. Each stack of a log has one number.
  virtual const Stack& stack(uint32_t /*number*/) const {
    static const Stack kNone;
    return kNone;
  }

  // Calls `visit` for each event until it returns false. Throws `InputError` if the log is invalid.
  virtual void Walk(const std::function<bool(const MemoryEvent&)>& visit) const = 0;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_MEMORY_LOG_H_
