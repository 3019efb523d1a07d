#include "experiments/output/snapshot_export.h"

#include <algorithm>
#include <map>
#include <vector>

#include "experiments/output/memory_timeline.h"
#include "traces/base/error.h"
#include "traces/logs/pickle_writer.h"

namespace spillway::lab {
namespace {

// The number of items in a batch of a list, as in Python's pickler. The viewer passes a batch as
// arguments of one call, and browsers accept only some ten thousand arguments.
constexpr size_t kBatch = 1000;

// The first address, chosen to look like an address of a GPU.
constexpr int64_t kBase = int64_t{0x7f00} << 32;

int64_t AddressOf(Bytes offset) { return kBase + offset.count(); }

// Returns the ranges of all blocks of the run, with ranges joined that overlap or touch.
std::vector<Block> SegmentsOf(const Report& report) {
  std::vector<Block> ranges;
  for (const Placement& placement : report.placements) {
    if (placement.on_device() && placement.kind == PlacementKind::kAllocate) {
      ranges.push_back(placement.block);
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Block& a, const Block& b) { return a.offset < b.offset; });
  std::vector<Block> segments;
  for (const Block& range : ranges) {
    if (segments.empty() || range.offset > segments.back().end()) {
      segments.push_back(range);
    } else if (range.end() > segments.back().end()) {
      segments.back().size = range.end() - segments.back().offset;
    }
  }
  return segments;
}

class SnapshotWriter {
 public:
  SnapshotWriter(const Trace& trace, const Report& report) : trace_(trace), report_(report) {}

  std::string Write() {
    const std::vector<Block> segments = SegmentsOf(report_);
    pickle_.BeginDict().PutString("device_traces").BeginList().BeginList();
    for (const Block& segment : segments) {
      BeginEvent("segment_alloc", segment.offset, segment.size, Duration());
      pickle_.PutString("frames").BeginList().EndList();
      EndEvent();
    }
    for (const MemorySample& sample : MemoryTimeline(report_)) {
      const Placement& placement = report_.placements[sample.change];
      if (!placement.on_device()) continue;
      if (placement.kind == PlacementKind::kAllocate) {
        PutEvent("alloc", placement, sample.time);
        live_[placement.block.offset] = &placement;
      } else {
        PutEvent("free_requested", placement, sample.time);
        PutEvent("free_completed", placement, sample.time);
        live_.erase(placement.block.offset);
      }
    }
    pickle_.EndList().EndList().PutString("segments").BeginList();
    for (size_t i = 0; i < segments.size(); ++i) {
      if (i > 0 && i % kBatch == 0) pickle_.NextBatch();
      PutSegment(segments[i]);
    }
    pickle_.EndList().PutString("external_annotations").BeginList().EndList().EndDict();
    return pickle_.Take();
  }

 private:
  void Put(std::string_view key, int64_t value) { pickle_.PutString(key).PutInteger(value); }
  void Put(std::string_view key, Bytes value) { Put(key, value.count()); }

  void BeginEvent(std::string_view action, Bytes offset, Bytes size, Duration time) {
    pickle_.BeginDict().PutString("action").PutString(action);
    Put("addr", AddressOf(offset));
    Put("size", size);
    Put("stream", 0);
    Put("time_us", time.picoseconds() / 1'000'000);
  }

  void PutEvent(std::string_view action, const Placement& placement, Duration time) {
    BeginEvent(action, placement.block.offset, placement.requested, time);
    PutFrames(placement);
    EndEvent();
  }

  // Ends an event with the keys that PyTorch adds to every event, with the values that PyTorch uses
  // for unknown data.
  void EndEvent() {
    pickle_.PutString("compile_context").PutString("N/A");
    pickle_.PutString("user_metadata").PutString("").EndDict();
    if (++events_ % kBatch == 0) pickle_.NextBatch();
  }

  void PutFrames(const Placement& placement) {
    const Op& op = trace_.op(placement.op);
    pickle_.PutString("frames").BeginList();
    PutFrame(placement.tensor == kNoTensor ? std::string_view("(no tensor)")
                                           : std::string_view(trace_.tensor(placement.tensor).name),
             placement.op);
    PutFrame(op.name, placement.op);
    pickle_.EndList();
  }

  void PutFrame(std::string_view name, OpId op) {
    pickle_.BeginDict().PutString("filename").PutString(trace_.name);
    Put("line", static_cast<int64_t>(Index(op)));
    pickle_.PutString("name").PutString(name).EndDict();
  }

  void PutSegment(const Block& segment) {
    const auto begin = live_.lower_bound(segment.offset), end = live_.lower_bound(segment.end());
    Bytes allocated, requested;
    for (auto at = begin; at != end; ++at) {
      allocated += at->second->block.size;
      requested += at->second->requested;
    }
    pickle_.BeginDict();
    Put("device", 0);
    Put("address", AddressOf(segment.offset));
    Put("total_size", segment.size);
    Put("allocated_size", allocated);
    Put("active_size", allocated);
    Put("requested_size", requested);
    Put("stream", 0);
    pickle_.PutString("segment_type").PutString("large");
    pickle_.PutString("segment_pool_id").BeginTuple().PutInteger(0).PutInteger(0).EndTuple();
    pickle_.PutString("is_expandable").PutBool(false);
    pickle_.PutString("frames").BeginList().EndList();
    pickle_.PutString("blocks").BeginList();
    Bytes at = segment.offset;
    size_t blocks = 0;
    for (auto block = begin; block != end; ++block) {
      if (++blocks % (kBatch / 2) == 0) pickle_.NextBatch();  // each may have a gap before it
      const Placement& placement = *block->second;
      if (placement.block.offset > at) PutGap(at, placement.block.offset);
      BeginBlock(placement.block.offset, placement.block.size, placement.requested,
                 "active_allocated");
      PutFrames(placement);
      pickle_.EndDict();
      at = placement.block.end();
    }
    if (segment.end() > at) PutGap(at, segment.end());
    pickle_.EndList().EndDict();
  }

  void PutGap(Bytes begin, Bytes end) {
    BeginBlock(begin, end - begin, Bytes(0), "inactive");
    pickle_.PutString("frames").BeginList().EndList().EndDict();
  }

  void BeginBlock(Bytes offset, Bytes size, Bytes requested, std::string_view state) {
    pickle_.BeginDict();
    Put("address", AddressOf(offset));
    Put("size", size);
    Put("requested_size", requested);
    pickle_.PutString("state").PutString(state);
  }

  const Trace& trace_;
  const Report& report_;
  PickleWriter pickle_;
  size_t events_ = 0;                       // written
  std::map<Bytes, const Placement*> live_;  // at the end, by offset
};

}  // namespace

std::string FormatSnapshot(const Trace& trace, const Report& report) {
  SPILLWAY_CHECK(report.fits());
  return SnapshotWriter(trace, report).Write();
}

}  // namespace spillway::lab
