// Opens an allocation log of any known format.

#ifndef SPILLWAY_TRACES_LOGS_OPEN_LOG_H_
#define SPILLWAY_TRACES_LOGS_OPEN_LOG_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "traces/logs/memory_log.h"

namespace spillway::traces {

// Opens a log. Its contents determine its format: a pickle is a PyTorch memory snapshot, JSON is a
// file of `spillway run --export decisions`, and the header of a CSV file tells RMM logs from
// static problems. `device` selects one of a snapshot's devices; without it only one device may
// have events. Throws `InputError`.
std::unique_ptr<MemoryLog> OpenMemoryLog(const std::filesystem::path& path,
                                         std::optional<int> device = std::nullopt);
// Opens a log in memory, like `OpenMemoryLog`. `origin` takes the place of the path in messages.
std::unique_ptr<MemoryLog> ParseMemoryLog(std::string contents, const std::string& origin,
                                          std::optional<int> device = std::nullopt);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_OPEN_LOG_H_
