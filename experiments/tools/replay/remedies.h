// Finds what would have served a request that failed when a log was recorded. Each remedy has been
// verified by a replay.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REMEDIES_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REMEDIES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/tools/replay/replay.h"

namespace spillway::lab {

// Returns a new allocator with this name for the log, limited to `memory`.
using AllocatorFactory = std::function<std::unique_ptr<ReplayableAllocator>(
    const std::string& name, const MemoryLog& log, Bytes memory)>;

// A setting of PyTorch's allocator: the specification for `AllocatorFactory`, and the text for
// PYTORCH_CUDA_ALLOC_CONF.
struct AllocatorSetting {
  std::string_view allocator, configuration;
};
constexpr AllocatorSetting kAllocatorSettings[] = {
    {"pytorch:expandable_segments=true", "expandable_segments:True"},
    {"pytorch:max_split_size=128MiB", "max_split_size_mb:128"},
    {"pytorch:max_split_size=512MiB", "max_split_size_mb:512"}};

struct Card {
  std::string name;
  Bytes memory;
};

struct FailureRemedy {
  std::string_view kind;  // "limit", "setting", "device" or "operator"
  std::string text;       // a sentence for people
  Bytes memory;           // the allocator's in the replay that served the request
  Bytes reserved;         // the most that it reserved there
  Bytes to_spare() const { return memory - reserved; }
};

struct FailureSituation {
  Bytes memory;                 // the allocator's, in which the request fails
  std::optional<Bytes> needed;  // a memory in which the recorded allocator serves the log
  // The most memory that the device had for the process, if the limit of the process was lower.
  std::optional<Bytes> available;
  std::vector<HeldBlock> held;  // the blocks that were live at the failure
  uint64_t event = 0;           // the failed request's event
  Bytes wanted;                 // the bytes that the failed request asked for
};

// Returns the remedies, the cheapest first: a higher limit of the process, a setting of the
// allocator, a card of `cards`, other operators. A remedy that does not serve the log is left out.
std::vector<FailureRemedy> FindFailureRemedies(const MemoryLog& log,
                                               const FailureSituation& situation,
                                               const AllocatorFactory& make,
                                               std::vector<Card> cards);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_REMEDIES_H_
