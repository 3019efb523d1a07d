// Picks the records of a PyTorch memory snapshot out of its pickle.
//
// Only the snapshot reader uses this header. Records are dictionaries, which are distinguished by
// their keys and by their place. The rest of the pickle (stack frames, annotations) is skipped.

#ifndef SPILLWAY_TRACES_LOGS_SNAPSHOT_RECORDS_H_
#define SPILLWAY_TRACES_LOGS_SNAPSHOT_RECORDS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "traces/logs/byte_source.h"
#include "traces/logs/memory_log.h"

namespace spillway::traces {

enum class SnapshotAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory,
  kUserDefined,
};

// An event of a device's trace.
struct SnapshotEvent {
  SnapshotAction action = SnapshotAction::kAlloc;
  int device = 0;
  uint64_t index = 0;  // in the device's trace
  uint64_t address = 0;
  Bytes size;
  uint64_t stream = 0;
  int64_t time = 0;
  uint64_t offset = 0;               // where the record ends in the file
  std::optional<Bytes> device_free;  // kOutOfMemory, if recorded
  uint32_t stack = 0;                // in `SnapshotRecords::stacks`
};

struct SnapshotBlock {
  uint64_t address = 0;
  Bytes size;
  Bytes requested;
  bool live = false;
  uint32_t stack = 0;  // in `SnapshotRecords::stacks`
};

struct SnapshotSegment {
  int device = 0;
  uint64_t address = 0;
  Bytes size;
  uint64_t stream = 0;
  bool small = false;
  bool expandable = false;
  std::vector<SnapshotBlock> blocks;
};

struct SnapshotRecords {
  std::vector<SnapshotSegment> segments;
  std::optional<PyTorchSettings> settings;  // nullopt: not recorded
  std::vector<Stack> stacks;  // all different, if they were requested; the first one is empty
};

// Reads a snapshot and calls `visit` for each event of each device's trace until `visit` returns
// false. The result is complete only if `visit` never returns false. With `frames`, events and
// blocks have the stacks that requested them. Throws `InputError`.
SnapshotRecords ReadSnapshotRecords(ByteSource& source,
                                    const std::function<bool(const SnapshotEvent&)>& visit,
                                    bool frames = false);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_SNAPSHOT_RECORDS_H_
