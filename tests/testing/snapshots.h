// Small PyTorch memory snapshots for tests of the code that reads snapshots.

#ifndef SPILLWAY_TESTS_TESTING_SNAPSHOTS_H_
#define SPILLWAY_TESTS_TESTING_SNAPSHOTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/logs/pickle_writer.h"

namespace spillway::testing {

struct SnapshotEventText {
  std::string_view action;
  int64_t address = 0;
  int64_t size = 0;
  int64_t stream = 0;
};

struct SnapshotBlockText {
  int64_t size = 0;
  int64_t requested = 0;
  std::string_view state = "inactive";
  std::string_view file = {};  // file of the block's stack frame; empty if it has none
};

struct SnapshotSegmentText {
  int64_t address = 0;
  std::string_view type = "small";
  std::vector<SnapshotBlockText> blocks;
  int64_t stream = 0;
};

struct SnapshotSettingsText {
  int64_t max_split_size = -1;
  double garbage_collection_threshold = 0;
  std::string_view configuration = {};  // PYTORCH_CUDA_ALLOC_CONF
  int64_t divisions = 4;                // divisions of powers of two from 256 to 512 MiB
  bool expandable_segments = false;
};

// Returns a snapshot of one device in the layout of PyTorch 2.
inline std::string MakeSnapshot(const std::vector<SnapshotSegmentText>& segments,
                                const std::vector<SnapshotEventText>& events,
                                const SnapshotSettingsText& settings = {}) {
  PickleWriter w;
  const auto put = [&](std::string_view key, int64_t value) { w.PutString(key).PutInteger(value); };
  w.BeginDict().PutString("segments").BeginList();
  for (const SnapshotSegmentText& segment : segments) {
    int64_t total = 0;
    for (const SnapshotBlockText& block : segment.blocks) total += block.size;
    w.BeginDict();
    put("device", 0);
    put("address", segment.address);
    put("total_size", total);
    put("stream", segment.stream);
    w.PutString("segment_type").PutString(segment.type);
    w.PutString("segment_pool_id").BeginTuple().PutInteger(0).PutInteger(0).EndTuple();
    w.PutString("is_expandable").PutBool(settings.expandable_segments);
    w.PutString("frames").BeginList().EndList();
    w.PutString("blocks").BeginList();
    int64_t at = segment.address;
    for (const SnapshotBlockText& block : segment.blocks) {
      w.BeginDict();
      put("address", at);
      put("size", block.size);
      put("requested_size", block.requested);
      w.PutString("state").PutString(block.state).PutString("frames").BeginList();
      if (!block.file.empty()) {
        w.BeginDict().PutString("name").PutString("train").PutString("filename");
        w.PutString(block.file).PutString("line").PutInteger(7).EndDict();
      }
      w.EndList().EndDict();
      at += block.size;
    }
    w.EndList().EndDict();
  }
  w.EndList().PutString("device_traces").BeginList().BeginList();
  int64_t time = 1'795'179'442'260'570;
  for (const SnapshotEventText& event : events) {
    w.BeginDict().PutString("action").PutString(event.action);
    if (event.action != "oom") put("addr", event.address);
    put("size", event.size);
    put("stream", event.stream);
    put("time_us", time++);
    w.PutString("compile_context").PutString("N/A").EndDict();
  }
  w.EndList().EndList().PutString("allocator_settings").BeginDict();
  w.PutString("PYTORCH_CUDA_ALLOC_CONF").PutString(settings.configuration);
  put("max_split_size", settings.max_split_size);
  w.PutString("garbage_collection_threshold").PutReal(settings.garbage_collection_threshold);
  w.PutString("expandable_segments").PutBool(settings.expandable_segments);
  w.PutString("roundup_power2_divisions").BeginDict();
  put("1", 0);
  put("256", settings.divisions);
  w.EndDict().EndDict().PutString("external_annotations").BeginList().EndList().EndDict();
  return w.Take();
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_SNAPSHOTS_H_
