#include "traces/logs/pytorch_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/logs/address_table.h"
#include "traces/logs/block_numbers.h"
#include "traces/logs/byte_source.h"
#include "traces/logs/snapshot_records.h"

namespace spillway::traces {
namespace {

using Action = SnapshotAction;

constexpr Bytes kSmallSegment = Bytes::MiB(2);
constexpr Bytes kLargestSmall = Bytes::MiB(1);
constexpr int64_t kGranule = 512;  // PyTorch rounds blocks to a multiple of it

uint64_t EndOf(uint64_t address, Bytes size) {
  return address + static_cast<uint64_t>(size.count());
}

[[noreturn]] void FailEvent(const ByteSource& source, const SnapshotEvent& event,
                            std::string_view what) {
  source.Fail(event.offset, fmt::format("event {} {} 0x{:x}", event.index, what, event.address));
}

// Finds the pages of expandable segments that had memory at the start: pages that the trace unmaps
// before it maps them, and pages at the end that the trace does not touch.
class StartPages {
 public:
  void Visit(const SnapshotEvent& event) {
    if (event.action == Action::kAlloc) {
      // The block lies in the pages that were mapped just before it, if any.
      for (; mapped_ > 0; --mapped_) {
        known_[pieces_[pieces_.size() - mapped_].address] = event.size <= kLargestSmall;
      }
    } else if (event.action == Action::kSegmentMap || event.action == Action::kSegmentUnmap) {
      const size_t before = pieces_.size();
      Touch(event.address, event.size, event.stream, event.action == Action::kSegmentUnmap);
      mapped_ = event.action == Action::kSegmentMap ? mapped_ + pieces_.size() - before : 0;
    }
  }

  void VisitEnd(const SnapshotSegment& segment) {
    known_[segment.address] = segment.small;
    Touch(segment.address, segment.size, segment.stream, true);
  }

  // Returns the segments, ordered by address within each range of addresses. `large_page` is the
  // size of the pages of large blocks.
  std::vector<StartSegment> Finish(Bytes large_page) {
    std::map<std::pair<uint64_t, bool>, std::map<uint64_t, StartSegment>> ranges;
    for (StartSegment& piece : pieces_) {
      piece.small = IsSmall(piece, large_page);
      auto& range = ranges[{piece.stream, piece.small}];
      if (!piece.expandable) piece.size = Bytes(0);  // no memory at the start
      piece.expandable = true;
      range.emplace(piece.address, piece);
    }
    std::vector<StartSegment> segments;
    for (const auto& [key, range] : ranges) {
      bool first = true;
      for (const auto& [address, piece] : range) {
        StartSegment* const last = first ? nullptr : &segments.back();
        if (!first && EndOf(last->address, last->size) == address) {
          last->size += piece.size;
        } else if (first || piece.size > Bytes(0)) {
          segments.push_back(piece);
        }
        first = false;
      }
    }
    return segments;
  }

 private:
  // Adds the parts of a range that have not been touched yet. Until `Finish`, the `expandable` of a
  // piece tells whether it had memory at the start.
  void Touch(uint64_t address, Bytes size, uint64_t stream, bool had_memory) {
    const uint64_t end = EndOf(address, size);
    auto at = touched_.upper_bound(address);
    if (at != touched_.begin()) address = std::max(address, std::prev(at)->second);
    while (address < end) {
      const uint64_t stop = at == touched_.end() ? end : std::min(end, at->first);
      if (stop > address) {
        pieces_.push_back(
            {address, Bytes(static_cast<int64_t>(stop - address)), stream, false, had_memory});
        touched_.emplace(address, stop);
      }
      if (at == touched_.end()) break;
      address = std::max(stop, at->second);
      ++at;
    }
  }

  // Returns true iff the piece is in the pool for small blocks, like the nearest pages whose pool
  // is known: ranges of addresses are far apart. If no pool is known, a size that is not a multiple
  // of `large_page` means small.
  bool IsSmall(const StartSegment& piece, Bytes large_page) const {
    if (known_.empty()) return RoundDown(piece.size, large_page) != piece.size;
    const auto above = known_.lower_bound(piece.address);
    if (above == known_.begin()) return above->second;
    const auto below = std::prev(above);
    const bool is_above =
        above != known_.end() && above->first - piece.address < piece.address - below->first;
    return is_above ? above->second : below->second;
  }

  std::map<uint64_t, uint64_t> touched_;  // end by begin
  std::map<uint64_t, bool> known_;        // by address: true for pages of small blocks
  std::vector<StartSegment> pieces_;
  size_t mapped_ = 0;  // number of last pieces that were mapped and await their block
};

// Finds the blocks and segments that were live at the start, while the trace is read.
class StartFinder {
 public:
  explicit StartFinder(const ByteSource& source) : source_(source) {}

  void Visit(const SnapshotEvent& event) {
    pages_.Visit(event);
    switch (event.action) {
      case Action::kAlloc:
        if (!live_.Insert(event.address, event.size)) {
          FailEvent(source_, event, "allocates a block that is live:");
        }
        break;
      case Action::kFreeCompleted:
        if (live_.Find(event.address) != nullptr) {
          live_.Erase(event.address);
        } else if (taken_.Insert(event.address, true)) {
          start_.blocks.push_back({0, event.size, event.address, event.stream, Bytes(0)});
        } else {
          FailEvent(source_, event, "frees a block that is not live:");
        }
        break;
      case Action::kSegmentAlloc:
        if (!segments_.Insert(event.address, true)) {
          FailEvent(source_, event, "allocates a segment that exists:");
        }
        break;
      case Action::kSegmentFree:
        if (segments_.Find(event.address) != nullptr) {
          segments_.Erase(event.address);
        } else {
          start_.segments.push_back(
              {event.address, event.size, event.stream, event.size == kSmallSegment, false});
        }
        break;
      default:
        break;
    }
  }

  MemoryLogStart Finish(const SnapshotRecords& records, int device) {
    std::optional<bool> expandable;
    if (records.settings) expandable = records.settings->expandable_segments;
    bool of_one_kind = true;
    for (const SnapshotSegment& segment : records.segments) {
      if (segment.device != device) continue;
      of_one_kind &= segment.expandable == expandable.value_or(segment.expandable);
      expandable = segment.expandable;
      if (segment.expandable) {
        pages_.VisitEnd(segment);
      } else if (segments_.Find(segment.address) == nullptr) {
        start_.segments.push_back(
            {segment.address, segment.size, segment.stream, segment.small, false});
      }
      for (const SnapshotBlock& block : segment.blocks) {
        if (!block.live || live_.Find(block.address) != nullptr) continue;
        if (!taken_.Insert(block.address, true)) {
          throw InputError(fmt::format("{}: block 0x{:x} is freed by the trace and live at its end",
                                       source_.origin(), block.address));
        }
        start_.blocks.push_back({0, block.requested, block.address, segment.stream, block.size});
      }
    }
    Bytes large_page = Bytes::MiB(20);
    if (records.settings) large_page = records.settings->large_segment_size.value_or(large_page);
    for (const StartSegment& segment : pages_.Finish(large_page)) {
      start_.segments.push_back(segment);
    }
    const auto by_address = [](const auto& a, const auto& b) { return a.address < b.address; };
    std::sort(start_.blocks.begin(), start_.blocks.end(), by_address);
    std::sort(start_.segments.begin(), start_.segments.end(), by_address);
    for (uint32_t i = 0; i < start_.blocks.size(); ++i) start_.blocks[i].block = i;
    // If settings changed during the trace, there are segments of both kinds.
    start_.records_segments = of_one_kind && BlocksLieInSegments();
    if (!start_.records_segments) start_.segments.clear();
    start_.pytorch = records.settings;
    return std::move(start_);
  }

 private:
  // Returns true iff the segments do not overlap and each block, rounded up, lies in one segment
  // and ends before the next block.
  bool BlocksLieInSegments() const {
    size_t block = 0;
    uint64_t end = 0;
    for (const StartSegment& segment : start_.segments) {
      if (segment.address < end) return false;
      const uint64_t segment_end = EndOf(segment.address, segment.size);
      end = segment.address;
      for (; block < start_.blocks.size(); ++block) {
        const StartBlock& b = start_.blocks[block];
        if (b.address >= segment_end) break;
        if (b.address < end || b.address % kGranule != 0) return false;
        const Bytes rounded = RoundUp(std::max(b.size, Bytes(1)), Bytes(kGranule));
        end = EndOf(b.address, std::max(b.taken, rounded));
        if (end > segment_end) return false;
      }
      end = segment_end;
    }
    return block == start_.blocks.size();
  }

  const ByteSource& source_;
  AddressTable<Bytes> live_;
  AddressTable<bool> taken_;  // addresses of blocks live at the start
  AddressTable<bool> segments_;
  StartPages pages_;
  MemoryLogStart start_;
};

// Finds how far each block of the start reaches that the trace frees. A block includes the rest
// behind it that could not be split off. It ends where the first block that is placed behind it
// begins.
class ReachFinder {
 public:
  explicit ReachFinder(MemoryLogStart& start) : start_(start) {
    for (StartBlock& block : start.blocks) {
      live_.emplace(block.address, &block);
      unknown_ += block.taken == Bytes(0);
    }
  }

  // Returns false once every reach is known.
  bool Visit(const SnapshotEvent& event) {
    if (event.action == Action::kFreeCompleted) {
      const auto freed = live_.find(event.address);
      if (freed == live_.end()) return true;
      unknown_ -= IsUnknown(freed->second);
      live_.erase(freed);
    } else if (event.action == Action::kAlloc) {
      const auto above = live_.upper_bound(event.address);
      if (above != live_.begin()) Place(std::prev(above)->second, event.address);
      live_.emplace_hint(above, event.address, nullptr);
    }
    return unknown_ > 0;
  }

 private:
  static bool IsUnknown(const StartBlock* block) {
    return block != nullptr && block->taken == Bytes(0);
  }

  void Place(StartBlock* block, uint64_t next) {
    if (!IsUnknown(block)) return;
    const auto segment = std::prev(
        std::upper_bound(start_.segments.begin(), start_.segments.end(), block->address,
                         [](uint64_t a, const StartSegment& s) { return a < s.address; }));
    const Bytes taken(static_cast<int64_t>(next - block->address));
    if (next >= EndOf(segment->address, segment->size) || taken < block->size) return;
    block->taken = taken;
    --unknown_;
  }

  MemoryLogStart& start_;
  std::map<uint64_t, StartBlock*> live_;  // nullptr: the block was allocated after the start
  size_t unknown_ = 0;
};

// Turns the records of a trace into events of a log.
class Translator {
 public:
  Translator(const ByteSource& source, const MemoryLogStart& start,
             const std::function<bool(const MemoryEvent&)>& visit)
      : source_(source),
        visit_(visit),
        collects_(start.pytorch && start.pytorch->garbage_collection_threshold > 0) {
    for (const StartBlock& block : start.blocks) live_.Insert(block.address, numbers_.Take());
  }

  bool Visit(const SnapshotEvent& event) {
    MemoryEvent out;
    out.index = event.index;
    out.size = event.size;
    out.address = event.address;
    out.stream = event.stream;
    out.time = event.time;
    const bool took_a_segment =
        event.action == Action::kSegmentAlloc || event.action == Action::kOutOfMemory;
    const bool gave_back =
        event.action == Action::kSegmentFree || event.action == Action::kSegmentUnmap;
    if (!gave_back && !EndRun(collects_ && took_a_segment)) return false;
    switch (event.action) {
      case Action::kAlloc: {
        out.kind = MemoryEvent::Kind::kAllocate;
        out.block = numbers_.Take();
        if (!live_.Insert(event.address, out.block)) {
          FailEvent(source_, event, "allocates a block that is live:");
        }
        return visit_(out);
      }
      case Action::kFreeCompleted: {
        const uint32_t* const block = live_.Find(event.address);
        if (block == nullptr) FailEvent(source_, event, "frees a block that is not live:");
        out.kind = MemoryEvent::Kind::kFree;
        out.block = *block;
        live_.Erase(event.address);
        numbers_.Give(out.block);
        return visit_(out);
      }
      case Action::kOutOfMemory:
        out.kind = MemoryEvent::Kind::kFailed;
        out.device_free = event.device_free;
        return visit_(out);
      case Action::kSegmentAlloc:
      case Action::kSegmentMap:
        out.kind = MemoryEvent::Kind::kSegmentAllocate;
        return visit_(out);
      case Action::kSegmentFree:
      case Action::kSegmentUnmap:
        out.kind = MemoryEvent::Kind::kSegmentFree;
        run_ = out;
        return visit_(out);
      default:
        return true;
    }
  }

  // Must be called after the last event.
  void Finish() { EndRun(false); }

 private:
  // Ends a run of freed segments, if there is one. `own` is true if the allocator released them by
  // itself, so there is no kEmptyCache event.
  bool EndRun(bool own) {
    if (!run_) return true;
    MemoryEvent empty = *run_;
    run_.reset();
    empty.kind = MemoryEvent::Kind::kEmptyCache;
    empty.size = Bytes(0);
    empty.address = 0;
    return own || visit_(empty);
  }

  const ByteSource& source_;
  const std::function<bool(const MemoryEvent&)>& visit_;
  const bool collects_;
  AddressTable<uint32_t> live_;
  BlockNumbers numbers_;
  std::optional<MemoryEvent> run_;  // the last freed segment of the current run
};

class PyTorchSnapshot final : public MemoryLog {
 public:
  // `contents` is a file in memory. Without it, `origin` is the path of a file.
  PyTorchSnapshot(std::string origin, std::optional<std::string> contents,
                  std::optional<int> device)
      : origin_(std::move(origin)), contents_(std::move(contents)) {
    std::map<int, DeviceEvents> devices;
    ReadStart(device, devices);
    if (device && !devices.empty() && !devices.contains(*device)) {
      throw InputError(fmt::format("{}: device {} has no events (devices with events: {})", origin_,
                                   *device, fmt::join(std::views::keys(devices), ", ")));
    }
    if (device || devices.size() <= 1) return;
    if (const int chosen = Choose(devices); chosen != device_) {
      last_failure_.reset();
      ReadStart(chosen, devices);
    }
  }

  std::string_view Format() const override { return "pytorch"; }
  const MemoryLogStart& start() const override { return start_; }

  std::optional<uint64_t> LastFailure() const override { return last_failure_; }
  std::string Remark() const override { return remark_; }

  uint32_t StackOf(uint64_t index) const override {
    ReadStacks();
    return NumberIn(stack_of_, index);
  }
  uint32_t StackOfStart(uint32_t block) const override {
    ReadStacks();
    return NumberIn(stack_of_start_, start_.blocks[block].address);
  }
  const Stack& stack(uint32_t number) const override {
    ReadStacks();
    return stacks_[number];
  }

  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    const auto source = Open();
    Translator translator(*source, start_, visit);
    bool wants_more = true;
    ReadSnapshotRecords(*source, [&](const SnapshotEvent& event) {
      wants_more = event.device != device_ || translator.Visit(event);
      return wants_more;
    });
    if (wants_more) translator.Finish();
  }

 private:
  // What a device has in the traces.
  struct DeviceEvents {
    bool allocates = false;  // or takes segments; other records alone are strays
    bool failed = false;     // ran out of memory
  };

  // Reads the start and the last failure of the device; with nullopt, of the first with events.
  void ReadStart(std::optional<int> device, std::map<int, DeviceEvents>& devices) {
    const auto source = Open();
    StartFinder finder(*source);
    const SnapshotRecords records = ReadSnapshotRecords(*source, [&](const SnapshotEvent& event) {
      if (!device) device = event.device;
      DeviceEvents& seen = devices[event.device];
      seen.allocates |= event.action == Action::kAlloc || event.action == Action::kSegmentAlloc ||
                        event.action == Action::kSegmentMap;
      seen.failed |= event.action == Action::kOutOfMemory;
      if (event.device == *device) {
        finder.Visit(event);
        if (event.action == Action::kOutOfMemory) last_failure_ = event.index;
      }
      return true;
    });
    device_ = device.value_or(0);
    start_ = finder.Finish(records, device_);
    // In expandable segments, the rest of a block is always split off.
    if (start_.segments.empty() || start_.segments.front().expandable) return;
    ReachFinder reach(start_);
    ReadSnapshotRecords(*Open(), [&](const SnapshotEvent& event) {
      return event.device != device_ || reach.Visit(event);
    });
  }

  // Returns the only device that ran out of memory, or else the only one with allocations. Throws
  // `InputError` if several did.
  int Choose(const std::map<int, DeviceEvents>& devices) {
    for (const bool failed : {true, false}) {
      std::vector<int> some;
      for (const auto& [device, events] : devices) {
        if (failed ? events.failed : events.allocates) some.push_back(device);
      }
      if (some.size() > 1) {
        throw InputError(fmt::format(
            "{}: {} devices {}: choose one with --trace-device (valid: {})", origin_, some.size(),
            failed ? "ran out of memory" : "have events", fmt::join(some, ", ")));
      }
      if (some.empty()) continue;
      remark_ = fmt::format(
          "{} devices have records; device {}, the only one that {}, is taken (--trace-device "
          "takes another)",
          devices.size(), some[0], failed ? "ran out of memory" : "allocates");
      return some[0];
    }
    return device_;
  }

  using StackNumbers = std::vector<std::pair<uint64_t, uint32_t>>;

  void ReadStacks() const {
    if (!stacks_.empty()) return;
    AddressTable<bool> later;  // blocks allocated after the start
    const auto source = Open();
    SnapshotRecords records = ReadSnapshotRecords(
        *source,
        [&](const SnapshotEvent& event) {
          if (event.device != device_) return true;
          if (event.stack != 0) stack_of_.emplace_back(event.index, event.stack);
          if (event.action == Action::kAlloc) {
            later.Insert(event.address, true);
          } else if (event.action == Action::kFreeCompleted &&
                     later.Find(event.address) != nullptr) {
            later.Erase(event.address);
          }
          return true;
        },
        true);
    // Adds the stacks of blocks that are live from the start to the end.
    for (const SnapshotSegment& segment : records.segments) {
      if (segment.device != device_) continue;
      for (const SnapshotBlock& block : segment.blocks) {
        if (block.stack != 0 && later.Find(block.address) == nullptr) {
          stack_of_start_.emplace_back(block.address, block.stack);
        }
      }
    }
    std::sort(stack_of_start_.begin(), stack_of_start_.end());
    stacks_ = std::move(records.stacks);
  }

  static uint32_t NumberIn(const StackNumbers& numbers, uint64_t of) {
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), std::pair(of, 0u));
    return found == numbers.end() || found->first != of ? 0 : found->second;
  }

  std::unique_ptr<ByteSource> Open() const {
    if (contents_) return std::make_unique<ByteSource>(*contents_, origin_);
    return std::make_unique<ByteSource>(std::filesystem::path(origin_));
  }

  std::string origin_;
  std::optional<std::string> contents_;
  int device_ = 0;
  MemoryLogStart start_;
  std::optional<uint64_t> last_failure_;
  std::string remark_;
  mutable std::vector<Stack> stacks_;    // empty until the stacks are read
  mutable StackNumbers stack_of_;        // by index of the event
  mutable StackNumbers stack_of_start_;  // by address of the block
};

}  // namespace

std::unique_ptr<MemoryLog> OpenPyTorchSnapshot(const std::filesystem::path& path,
                                               std::optional<int> device) {
  return std::make_unique<PyTorchSnapshot>(path.string(), std::nullopt, device);
}

std::unique_ptr<MemoryLog> ParsePyTorchSnapshot(std::string contents, const std::string& origin,
                                                std::optional<int> device) {
  return std::make_unique<PyTorchSnapshot>(origin, std::move(contents), device);
}

}  // namespace spillway::traces
