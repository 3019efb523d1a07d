#include "traces/logs/pytorch_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/logs/address_table.h"
#include "traces/logs/block_numbers.h"
#include "traces/logs/byte_source.h"
#include "traces/logs/snapshot_records.h"

namespace spillway {
namespace {

using Action = SnapshotAction;

constexpr Bytes kSmallSegment = Bytes::MiB(2);
constexpr int64_t kGranule = 512;  // of PyTorch's blocks

[[noreturn]] void FailEvent(const ByteSource& source, const SnapshotEvent& event,
                            std::string_view what) {
  source.Fail(event.offset, fmt::format("event {} {} 0x{:x}", event.index, what, event.address));
}

// Finds what was live at the start while the trace goes by.
class StartFinder {
 public:
  explicit StartFinder(const ByteSource& source) : source_(source) {}

  void Visit(const SnapshotEvent& event) {
    switch (event.action) {
      case Action::kAlloc:
        if (!live_.Insert(event.address, event.size)) {
          FailEvent(source_, event, "allocates what is live:");
        }
        break;
      case Action::kFreeCompleted:
        if (live_.Find(event.address) != nullptr) {
          live_.Erase(event.address);
        } else if (taken_.Insert(event.address, true)) {
          start_.blocks.push_back({0, event.size, event.address, event.stream});
        } else {
          FailEvent(source_, event, "frees what is not live:");
        }
        break;
      case Action::kSegmentAlloc:
        if (!segments_.Insert(event.address, true)) {
          FailEvent(source_, event, "allocates a segment that is there:");
        }
        break;
      case Action::kSegmentFree:
        if (segments_.Find(event.address) != nullptr) {
          segments_.Erase(event.address);
        } else {
          start_.segments.push_back(
              {event.address, event.size, event.stream, event.size == kSmallSegment});
        }
        break;
      default:
        break;
    }
  }

  MemoryLogStart Finish(const SnapshotRecords& records, int device) {
    bool expandable = records.settings && records.settings->expandable_segments;
    for (const SnapshotSegment& segment : records.segments) {
      if (segment.device != device) continue;
      expandable |= segment.expandable;
      if (segments_.Find(segment.address) == nullptr) {
        start_.segments.push_back({segment.address, segment.size, segment.stream, segment.small});
      }
      for (const SnapshotBlock& block : segment.blocks) {
        if (!block.live || live_.Find(block.address) != nullptr) continue;
        if (!taken_.Insert(block.address, true)) {
          throw InputError(fmt::format("{}: block 0x{:x} is freed by the trace and live at its end",
                                       source_.origin(), block.address));
        }
        start_.blocks.push_back({0, block.requested, block.address, segment.stream});
      }
    }
    const auto by_address = [](const auto& a, const auto& b) { return a.address < b.address; };
    std::sort(start_.blocks.begin(), start_.blocks.end(), by_address);
    std::sort(start_.segments.begin(), start_.segments.end(), by_address);
    for (uint32_t i = 0; i < start_.blocks.size(); ++i) start_.blocks[i].block = i;
    // Expandable segments grow and shrink: what they were at the start is not recorded.
    start_.records_segments = !expandable && BlocksLieInSegments();
    if (!start_.records_segments) start_.segments.clear();
    start_.pytorch = records.settings;
    return std::move(start_);
  }

 private:
  // Whether the segments do not overlap and each block, rounded up, lies in one, before the next.
  bool BlocksLieInSegments() const {
    const auto end_of = [](uint64_t address, Bytes size) {
      return address + static_cast<uint64_t>(size.count());
    };
    size_t block = 0;
    uint64_t end = 0;
    for (const StartSegment& segment : start_.segments) {
      if (segment.address < end) return false;
      const uint64_t segment_end = end_of(segment.address, segment.size);
      end = segment.address;
      for (; block < start_.blocks.size(); ++block) {
        const StartBlock& b = start_.blocks[block];
        if (b.address >= segment_end) break;
        if (b.address < end || b.address % kGranule != 0) return false;
        end = end_of(b.address, RoundUp(std::max(b.size, Bytes(1)), Bytes(kGranule)));
        if (end > segment_end) return false;
      }
      end = segment_end;
    }
    return block == start_.blocks.size();
  }

  const ByteSource& source_;
  AddressTable<Bytes> live_;
  AddressTable<bool> taken_;  // at the start
  AddressTable<bool> segments_;
  MemoryLogStart start_;
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
    if (event.action != Action::kSegmentFree && !EndRun(collects_ && took_a_segment)) return false;
    switch (event.action) {
      case Action::kAlloc: {
        out.kind = MemoryEvent::Kind::kAllocate;
        out.block = numbers_.Take();
        if (!live_.Insert(event.address, out.block)) {
          FailEvent(source_, event, "allocates what is live:");
        }
        return visit_(out);
      }
      case Action::kFreeCompleted: {
        const uint32_t* const block = live_.Find(event.address);
        if (block == nullptr) FailEvent(source_, event, "frees what is not live:");
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
        out.kind = MemoryEvent::Kind::kSegmentAllocate;
        return visit_(out);
      case Action::kSegmentFree:
        out.kind = MemoryEvent::Kind::kSegmentFree;
        run_ = out;
        return visit_(out);
      default:
        return true;
    }
  }

  // Behind the last event.
  void Finish() { EndRun(false); }

 private:
  // Ends a run of freed segments, if there is one: `own`, if the allocator gave them back by
  // itself.
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
  std::optional<MemoryEvent> run_;  // the last freed segment of the run at hand
};

class PyTorchSnapshot final : public MemoryLog {
 public:
  // `contents` are those of a file in memory; without them, `origin` is the path of one.
  PyTorchSnapshot(std::string origin, std::optional<std::string> contents,
                  std::optional<int> device)
      : origin_(std::move(origin)), contents_(std::move(contents)) {
    const auto source = Open();
    StartFinder finder(*source);
    const bool chosen = device.has_value();
    std::set<int> devices;  // those with events
    int latest = 0;
    const SnapshotRecords records = ReadSnapshotRecords(*source, [&](const SnapshotEvent& event) {
      if (!device) device = event.device;
      if (devices.empty() || event.device != latest) devices.insert(latest = event.device);
      if (event.device == *device) {
        finder.Visit(event);
      } else if (!chosen) {
        source->Fail(event.offset, fmt::format("devices {} and {} both have events: choose one",
                                               *device, event.device));
      }
      return true;
    });
    if (chosen && !devices.empty() && !devices.contains(*device)) {
      throw InputError(fmt::format("{}: device {} has no events (those that have some: {})",
                                   origin_, *device, fmt::join(devices, ", ")));
    }
    device_ = device.value_or(0);
    start_ = finder.Finish(records, device_);
  }

  std::string_view Format() const override { return "pytorch"; }
  const MemoryLogStart& start() const override { return start_; }

  std::string Frame(uint64_t index) const override {
    if (!frames_read_) {
      std::map<std::string, uint32_t, std::less<>> numbers;
      const auto source = Open();
      ReadSnapshotRecords(
          *source,
          [&](const SnapshotEvent& event) {
            if (event.device != device_ || event.action != Action::kAlloc || event.frame.empty()) {
              return true;
            }
            auto found = numbers.find(event.frame);
            if (found == numbers.end()) {
              found = numbers.emplace(event.frame, frames_.size()).first;
              frames_.emplace_back(event.frame);
            }
            frame_of_.emplace_back(event.index, found->second);
            return true;
          },
          true);
      frames_read_ = true;
    }
    const auto found = std::lower_bound(frame_of_.begin(), frame_of_.end(), std::pair(index, 0u));
    if (found == frame_of_.end() || found->first != index) return {};
    return frames_[found->second];
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
  std::unique_ptr<ByteSource> Open() const {
    if (contents_) return std::make_unique<ByteSource>(*contents_, origin_);
    return std::make_unique<ByteSource>(std::filesystem::path(origin_));
  }

  std::string origin_;
  std::optional<std::string> contents_;
  int device_ = 0;
  MemoryLogStart start_;
  mutable bool frames_read_ = false;
  mutable std::vector<std::string> frames_;
  mutable std::vector<std::pair<uint64_t, uint32_t>> frame_of_;  // by event
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

}  // namespace spillway
