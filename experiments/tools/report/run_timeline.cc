#include "experiments/tools/report/run_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "experiments/output/chrome_trace.h"
#include "experiments/output/columns.h"
#include "experiments/output/explain.h"
#include "experiments/output/memory_timeline.h"
#include "traces/base/error.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// Returns the numbers as little-endian bytes in base64.
template <typename T>
std::string Packed(const std::vector<T>& numbers) {
  std::string bytes;
  bytes.reserve(numbers.size() * sizeof(T));
  for (const T number : numbers) {
    for (size_t k = 0; k < sizeof(T); ++k) bytes += static_cast<char>(number >> (8 * k) & 0xff);
  }
  return Base64(bytes);
}

constexpr size_t kMostBlocks = 100'000;
constexpr uint32_t kHost = 0xffffffff;

class Timeline {
 public:
  Timeline(const Outcome& outcome, Bytes memory)
      : trace_(*outcome.trace), report_(outcome.report), memory_(memory) {}

  std::string Write() {
    AddEvents();
    AddBlocks();
    JsonWriter json(0);
    json.BeginObject().Put("iteration_ms", report_.metrics.iteration.milliseconds());
    json.Put("capacity", IfLimited(memory_));
    const auto list = [&](const char* key, const auto& texts) {
      json.Key(key).BeginArray();
      for (const auto& text : texts) json.Put(text);
      json.EndArray();
    };
    json.Put("names", SharedNames());
    std::vector<std::string> streams;
    for (const Stream stream : streams_) streams.push_back(StreamName(stream, report_));
    list("streams", streams);
    std::vector<std::string_view> causes;
    for (const StallCause cause : {StallCause::kFetch, StallCause::kFence, StallCause::kMemory,
                                   StallCause::kLane, StallCause::kLaunch, StallCause::kDrain}) {
      causes.push_back(Name(cause));
    }
    list("causes", causes);
    std::vector<std::string> kinds;
    for (const std::string_view kind : TensorKindNames()) kinds.emplace_back(kind);
    kinds.emplace_back("workspace or reserved block");
    for (std::string& kind : kinds) std::ranges::replace(kind, '_', ' ');
    list("kinds", kinds);
    json.Key("phases").BeginArray();
    for (const auto& [phase, start] : phases_) {
      json.BeginObject().Put("name", Name(phase)).Put("start", start).EndObject();
    }
    json.EndArray();
    json.Key("events").BeginObject().Put("count", start_.size());
    json.Put("start", Packed(start_)).Put("length", Packed(length_)).Put("name", Packed(name_));
    json.Put("what", Packed(what_)).EndObject();
    json.Key("stalls").BeginObject().Put("count", stall_event_.size());
    json.Put("event", Packed(stall_event_)).Put("length", Packed(stall_length_));
    json.Put("cause", Packed(stall_cause_)).Put("awaited", Packed(stall_awaited_)).EndObject();
    json.Key("blocks").BeginObject().Put("omitted", omitted_).Put("count", block_start_.size());
    json.Put("start", Packed(block_start_)).Put("length", Packed(block_length_));
    json.Put("offset", Packed(block_offset_)).Put("size", Packed(block_size_));
    json.Put("name", Packed(block_name_)).Put("kind", Packed(block_kind_));
    json.Put("nested", Packed(block_nested_)).EndObject();
    std::string text = json.EndObject().Take();
    text.pop_back();  // the newline
    return text;
  }

 private:
  uint32_t Ticks(Duration time) const {
    const Int128 whole = std::max<int64_t>(1, report_.metrics.iteration.picoseconds());
    const Int128 ticks = Int128{time.picoseconds()} * 0xffffffff / whole;
    return static_cast<uint32_t>(std::clamp<Int128>(ticks, 0, 0xffffffff));
  }

  std::string SharedNames() const {
    constexpr size_t kMostShared = 'z' - '0';
    std::string text;
    std::string_view before;
    for (const std::string& name : names_) {
      const size_t most = std::min({before.size(), name.size(), kMostShared});
      size_t shared = 0;  // counts ASCII alone, where a character is a byte
      while (shared < most && name[shared] == before[shared] && name[shared] > 0) ++shared;
      text += static_cast<char>('0' + shared);
      text.append(name, shared);
      text += '\n';
      before = name;
    }
    return text;
  }

  uint32_t NameOf(const std::string& text) {
    const auto [known, is_new] = numbers_.try_emplace(text, static_cast<uint32_t>(names_.size()));
    if (is_new) {
      names_.push_back(text);
      std::ranges::replace(names_.back(), '\n', ' ');
    }
    return known->second;
  }

  void AddEvents() {
    const std::vector<CopyReason> reasons = CopyReasons(report_);
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      const TimelineEntry& entry = report_.timeline[i];
      const bool kernel = entry.kind == CommandKind::kKernel;
      start_.push_back(Ticks(entry.interval.start));
      length_.push_back(Ticks(entry.interval.end) - start_.back());
      name_.push_back(NameOf(kernel ? trace_.op(entry.op).name : trace_.tensor(entry.tensor).name));
      const int kind = kernel ? (entry.recompute ? 1 : 0) : 2 + static_cast<int>(reasons[i]);
      const auto row = std::ranges::find(streams_, entry.event.stream) - streams_.begin();
      what_.push_back(static_cast<uint8_t>(row + 16 * kind));
      if (!kernel || entry.recompute) continue;
      const Phase phase = trace_.op(entry.op).phase;
      if (phases_.empty() || phases_.back().first != phase) {
        phases_.emplace_back(phase, start_.back());
      }
    }
    std::vector<StallExplanation> stalls = ExplainStalls(trace_, report_);
    std::erase_if(stalls, [](const StallExplanation& stall) { return !stall.command; });
    std::ranges::sort(stalls, {}, &StallExplanation::command);
    for (const StallExplanation& stall : stalls) {
      stall_event_.push_back(static_cast<uint32_t>(*stall.command));
      stall_length_.push_back(Ticks(stall.length));
      stall_cause_.push_back(static_cast<uint8_t>(stall.cause));
      stall_awaited_.push_back(stall.awaited ? static_cast<uint32_t>(*stall.awaited) : kHost);
    }
  }

  struct Held {
    Duration since;
    const Placement* placement;
  };

  void AddBlocks() {
    const std::vector<Duration> times = PlacementTimes(report_);
    // Both maps are by offset: blocks of the allocator, and blocks nested in reserved blocks.
    std::map<Bytes, Held> blocks, nested;
    for (size_t i = 0; i < report_.placements.size(); ++i) {
      const Placement& placement = report_.placements[i];
      if (!placement.on_device()) continue;
      const bool inner =
          placement.kind == PlacementKind::kEnter || placement.kind == PlacementKind::kLeave;
      auto& held = inner ? nested : blocks;
      if (placement.kind == PlacementKind::kAllocate || placement.kind == PlacementKind::kEnter) {
        held[placement.block.offset] = {times[i], &placement};
      } else if (const auto found = held.find(placement.block.offset); found != held.end()) {
        AddBlock(found->second, times[i], inner);
        held.erase(found);
      }
    }
    for (const auto& [offset, held] : blocks) AddBlock(held, report_.metrics.iteration, false);
    for (const auto& [offset, held] : nested) AddBlock(held, report_.metrics.iteration, true);
    PackBlocks();
  }

  void AddBlock(const Held& held, Duration until, bool nested) {
    const uint32_t start = Ticks(held.since);
    blocks_.push_back({start, Ticks(until) - start, held.placement, nested});
  }

  // Packs the blocks. If there are more than `kMostBlocks`, keeps the blocks with the largest
  // products of size and length.
  void PackBlocks() {
    const auto area = [](const Block& block) {
      return static_cast<double>(block.placement->block.size.count()) * (1.0 + block.length);
    };
    if (blocks_.size() > kMostBlocks) {
      omitted_ = blocks_.size() - kMostBlocks;
      std::ranges::stable_sort(blocks_, std::greater(), area);
      blocks_.resize(kMostBlocks);
    }
    std::ranges::stable_sort(blocks_, {}, &Block::start);
    for (const Block& block : blocks_) {
      const Placement& placement = *block.placement;
      block_start_.push_back(block.start);
      block_length_.push_back(block.length);
      block_offset_.push_back(static_cast<uint32_t>(placement.block.offset.count() / 1024));
      block_size_.push_back(static_cast<uint32_t>((placement.block.size.count() + 1023) / 1024));
      const bool tensor = placement.tensor != kNoTensor;
      block_name_.push_back(NameOf(tensor ? trace_.tensor(placement.tensor).name
                                          : std::string("workspace or reserved block")));
      block_kind_.push_back(
          static_cast<uint8_t>(tensor ? static_cast<size_t>(trace_.tensor(placement.tensor).kind)
                                      : TensorKindNames().size()));
      block_nested_.push_back(block.nested ? 1 : 0);
    }
  }

  struct Block {
    uint32_t start, length;
    const Placement* placement;
    bool nested;
  };

  const Trace& trace_;
  const Report& report_;
  const std::vector<Stream> streams_ = StreamsOf(report_);
  const Bytes memory_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<uint32_t> start_, length_, name_;
  std::vector<uint8_t> what_;
  std::vector<std::pair<Phase, uint32_t>> phases_;
  std::vector<uint32_t> stall_event_, stall_length_, stall_awaited_;

  std::vector<uint8_t> stall_cause_;
  std::vector<uint32_t> block_start_, block_length_, block_offset_, block_size_, block_name_;
  std::vector<uint8_t> block_kind_, block_nested_;
  std::vector<Block> blocks_;
  size_t omitted_ = 0;
};

}  // namespace

std::string TimelineJson(const Outcome& outcome, Bytes memory) {
  SPILLWAY_CHECK(outcome.report.fits());
  return Timeline(outcome, memory).Write();
}

}  // namespace spillway::lab
