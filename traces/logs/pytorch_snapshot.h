// Reads PyTorch memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them.
//
// A snapshot holds the segments and blocks at its end and a trace of what led there, of which the
// beginning may be lost. What was live at the start follows from both, by going backwards: what the
// trace frees without having allocated it, and what is there in the end without having been
// allocated. The file is walked twice, in memory that grows with the live blocks only.
//
// A block ends with its `free_completed`, when no stream uses it any more. A run of `segment_free`
// is one kEmptyCache, unless the recorded allocator collected garbage and took a segment, or ran
// out of memory, right behind it: then the run was its own doing. Kinds of events and keys that say
// nothing of memory are skipped.

#ifndef SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_
#define SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "traces/logs/memory_log.h"

namespace spillway {

// Throws `InputError` "path: byte 12: message".
std::unique_ptr<MemoryLog> OpenPyTorchSnapshot(const std::filesystem::path& path,
                                               std::optional<int> device);
std::unique_ptr<MemoryLog> ParsePyTorchSnapshot(std::string contents, const std::string& origin,
                                                std::optional<int> device);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOGS_PYTORCH_SNAPSHOT_H_
