// Reads PyTorch memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them.
//
// A snapshot holds the segments and blocks at its end and a trace of the events before, whose
// beginning may be lost. The state at the start follows from both: a block was live at the start if
// the trace frees it without allocating it, or if it is live at the end without having been
// allocated. The file is walked twice, in memory that grows with the live blocks only.
//
// A block ends with its `free_completed`, when no stream uses it any more. A run of `segment_free`
// is one kEmptyCache. The exception is a recorded allocator that collected garbage and took a
// segment, or ran out of memory, right after the run: then it released the segments by itself.
// Kinds of events and keys without information about memory are skipped.

#ifndef SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_
#define SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "traces/logs/memory_log.h"

namespace spillway::traces {

// Open a snapshot. Throw `InputError` with the message "path: byte 12: message".
std::unique_ptr<MemoryLog> OpenPyTorchSnapshot(const std::filesystem::path& path,
                                               std::optional<int> device);
std::unique_ptr<MemoryLog> ParsePyTorchSnapshot(std::string contents, const std::string& origin,
                                                std::optional<int> device);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_
