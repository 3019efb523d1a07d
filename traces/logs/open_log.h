// Opens an allocation log of any format that is known.

#ifndef SPILLWAY_TRACES_LOGS_OPEN_LOG_H_
#define SPILLWAY_TRACES_LOGS_OPEN_LOG_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "traces/logs/memory_log.h"

namespace spillway {

// Opens a log and finds its format by its contents: a pickle is a PyTorch memory snapshot, JSON a
// file of `spillway run --export-decisions`, CSV one or the other by its header. `device` chooses
// among a snapshot's devices; without it only one may have events. Throws `InputError`.
std::unique_ptr<MemoryLog> OpenMemoryLog(const std::filesystem::path& path,
                                         std::optional<int> device = std::nullopt);
// The same of contents in memory; `origin` stands for the path in messages.
std::unique_ptr<MemoryLog> ParseMemoryLog(std::string contents, const std::string& origin,
                                          std::optional<int> device = std::nullopt);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOGS_OPEN_LOG_H_
