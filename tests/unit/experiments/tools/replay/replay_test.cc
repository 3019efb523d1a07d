// Replays of logs small enough to follow by hand, and of recorded logs if they are available.

#include "experiments/tools/replay/replay.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "experiments/output/snapshot_export.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "policies/plugin/library.h"
#include "sim/alloc/make_allocator.h"
#include "sim/cost/roofline.h"
#include "tests/testing/files.h"
#include "tests/testing/runs.h"
#include "tests/testing/snapshots.h"
#include "traces/base/error.h"
#include "traces/logs/open_log.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kBase = int64_t{0x7f00} << 32;

ReplayResult ReplayOn(const MemoryLog& log, const std::string& specification,
                      Bytes memory = Bytes::Unlimited(), const ReplayOptions& options = {},
                      bool compare = false) {
  const auto allocator = specification == "planned"
                             ? PlannedFor(log, memory)
                             : MakeAllocator(specification, memory, Bytes(512));
  return ReplayLog(log, {{specification, allocator.get(), compare}}, options).results.front();
}

std::unique_ptr<MemoryLog> Static(const std::string& rows) {
  return ParseMemoryLog("id,lower,upper,size\n" + rows, "log");
}

// Blocks in units of 512 bytes over time. c has three units; the gap that a leaves has only two.
//   a aa.....
//   b  bbbb..
//   c    cccc
const char* const kGap = "a,0,2,1024\nb,1,6,512\nc,3,7,1536\n";

TEST(ReplayTest, TellsWhatFitsAndWhatIsNeeded) {
  const auto log = Static(kGap);
  const ReplayResult result = ReplayOn(*log, "best-fit");
  EXPECT_TRUE(result.fits());
  EXPECT_EQ(result.operations, 6u);
  EXPECT_EQ(result.peak_requested, Bytes(2048));
  EXPECT_EQ(result.peak_allocated, Bytes(2048));
  EXPECT_EQ(result.peak_reserved, Bytes(3072));
  EXPECT_DOUBLE_EQ(result.fragmentation(), 1.0 / 3);
  EXPECT_FALSE(result.compared);
  EXPECT_FALSE(result.nanoseconds);
  EXPECT_TRUE(ReplayOn(*log, "best-fit", Bytes(3072)).fits());

  const auto planned = ReplayOn(*log, "planned", Bytes(2048));
  EXPECT_TRUE(planned.fits());
  EXPECT_EQ(planned.peak_reserved, Bytes(2048));
  EXPECT_FALSE(ReplayOn(*log, "planned", Bytes(2047)).fits());
}

// A plan half a percent above the bound is accepted, unless it exceeds the memory.
TEST(ReplayTest, PlansForTheMemoryThereIs) {
  const auto log = Static(
      "a,0,2,5120\nb,0,1,2560\nc,0,16,512\nd,4,16,1024\ne,0,4,2560\nf,13,16,2048\ng,1,13,1024\n"
      "h,4,16,6656\ni,2,4,5120\nj,0,16,1536\nk,13,16,512\nl,1,13,1536\nm,0,16,5120000\n");
  const Bytes bound(10'024 * 512);
  const ReplayResult result = ReplayOn(*log, "planned");
  EXPECT_EQ(result.peak_allocated, bound);
  EXPECT_GT(result.peak_reserved, bound);
  EXPECT_TRUE(ReplayOn(*log, "planned", bound).fits());
}

// Blocks of one size leave no gap that is too small, so the first request that fails is the first
// one for which the memory does not suffice, with a plan as without.
TEST(ReplayTest, APlanServesWhatTheMemorySufficesFor) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    std::string rows;
    for (int block = 0; block < 40; ++block) {
      const auto begin = random() % 60;
      rows += fmt::format("{},{},{},512\n", block, begin, begin + 1 + random() % 20);
    }
    const auto log = Static(rows);
    const Bytes memory = Bytes(512) * static_cast<int64_t>(1 + random() % 15);
    const ReplayResult planned = ReplayOn(*log, "planned", memory);
    const ReplayResult online = ReplayOn(*log, "best-fit", memory);
    ASSERT_EQ(planned.fits(), online.fits()) << rows;
    if (online.fits()) continue;
    EXPECT_EQ(planned.failure->event, online.failure->event) << rows;
  }
}

TEST(ReplayTest, SumsTheLogUpWhateverTheAllocatorsDo) {
  const auto log = Static("a,0,2,1\nb,1,3,513\nc,2,4,0\n");
  const auto allocator = MakeAllocator("best-fit", Bytes(512), Bytes(512));
  const LogSummary summary = ReplayLog(*log, {{"best-fit", allocator.get()}}).summary;
  EXPECT_EQ(summary.events, 6u);
  EXPECT_EQ(summary.allocations, 3u);
  EXPECT_EQ(summary.peak_blocks, 2u);
  EXPECT_EQ(summary.peak_requested, Bytes(514));
  EXPECT_EQ(summary.lower_bound, Bytes(1536));
  EXPECT_FALSE(summary.recorded_peak_reserved);
}

TEST(ReplayTest, SaysWhoHoldsTheMemoryWhenARequestFails) {
  const auto log = Static("a,0,9,512\nb,1,9,512\nx,2,9,1024\ny,2,3,512\nz,4,9,1024\n");
  const ReplayResult result = ReplayOn(*log, "best-fit", Bytes(2560));
  ASSERT_FALSE(result.fits());
  const FailedRequest& failure = *result.failure;
  // After the requests for a, b, x and y and the end of y comes the request for z.
  EXPECT_EQ(failure.event, 5u);
  EXPECT_EQ(failure.wanted, Bytes(1024));
  EXPECT_EQ(failure.stats.allocated, Bytes(2048));
  EXPECT_EQ(failure.stats.largest_free, Bytes(512));
  ASSERT_EQ(failure.holders.size(), 2u);
  EXPECT_EQ(failure.holders[0].size, Bytes(1024));  // the same sum of bytes, but larger blocks
  EXPECT_EQ(failure.holders[0].blocks, 1u);
  EXPECT_EQ(failure.holders[1].blocks, 2u);
  EXPECT_EQ(failure.holders[1].first_event, 0u);
  EXPECT_EQ(failure.holders[1].last_event, 1u);
  EXPECT_EQ(result.operations, 6u);
}

TEST(ReplayTest, AFailureDoesNotStopTheOthers) {
  const auto log = Static(kGap);
  const auto small = MakeAllocator("best-fit", Bytes(1024), Bytes(512));
  const auto large = MakeAllocator("best-fit", Bytes(3072), Bytes(512));
  const auto replayed = ReplayLog(*log, {{"small", small.get()}, {"large", large.get()}});
  EXPECT_EQ(replayed.results[0].failure->event, 1u);
  EXPECT_TRUE(replayed.results[1].fits());
}

TEST(ReplayTest, SamplesAreThinnedAndKeepThePeaks) {
  std::string rows;
  for (int i = 0; i < 1000; ++i) {
    rows += fmt::format("{},{},{},{}\n", i, 2 * i, 2 * i + 1, i == 700 ? 51200 : 512);
  }
  const auto log = Static(rows);
  ReplayOptions options;
  options.samples = 10'000;
  EXPECT_EQ(ReplayOn(*log, "best-fit", Bytes::MiB(1), options).samples.size(), 2000u);
  options.samples = 64;
  const auto samples = ReplayOn(*log, "best-fit", Bytes::MiB(1), options).samples;
  EXPECT_LE(samples.size(), 64u);
  EXPECT_GE(samples.size(), 31u);
  EXPECT_EQ(std::max_element(samples.begin(), samples.end(),
                             [](const auto& a, const auto& b) { return a.requested < b.requested; })
                ->event,
            1400u);
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(),
                             [](const auto& a, const auto& b) { return a.event < b.event; }));
}

TEST(ReplayTest, TimesWithTheClockItIsGiven) {
  ReplayOptions options;
  int64_t now = 0;
  options.clock = [&] { return now += 5; };
  EXPECT_EQ(ReplayOn(*Static(kGap), "best-fit", Bytes::MiB(1), options).nanoseconds, 5);
}

// The last failed request is an event in its place, whatever follows it. The program went on
// without the failed requests before it.
TEST(ReplayTest, TheLastFailedRequestCountsAsTheOthersDo) {
  using Events = std::vector<testing::SnapshotEventText>;
  const Events ended{{"alloc", kBase, 512}, {"oom", 0, 64 * kMiB}};
  Events freed = ended, went_on = ended, earlier = ended;
  freed.push_back({"free_completed", kBase, 512});
  went_on.push_back({"alloc", kBase + 512, 512});
  earlier.insert(earlier.begin(), {"oom", 0, 256 * kMiB});
  for (const Events& events : {ended, freed, went_on, earlier}) {
    const auto log = ParseMemoryLog(MakeSnapshot({}, events), "log");
    const uint64_t at = events[0].action == "oom" ? 2 : 1;
    EXPECT_EQ(log->LastFailure(), at);
    for (const std::string allocator : {"best-fit", "planned", "pytorch"}) {
      SCOPED_TRACE(allocator);
      const ReplayResult failed = ReplayOn(*log, allocator, Bytes::MiB(64));
      ASSERT_FALSE(failed.fits());
      if (allocator != "planned") {
        EXPECT_EQ(failed.failure->event, at);
      }
      EXPECT_TRUE(ReplayOn(*log, allocator, Bytes::MiB(67)).fits());
    }
    EXPECT_EQ(ReplayOn(*log, "planned").peak_allocated, Bytes(64 * kMiB + 512));
    const auto best_fit = MakeAllocator("best-fit", Bytes::Unlimited(), Bytes(512));
    const LogSummary summary = ReplayLog(*log, {{"best-fit", best_fit.get()}}).summary;
    EXPECT_EQ(summary.lower_bound, Bytes(64 * kMiB + 512));
    EXPECT_EQ(summary.failed_event, at);
    EXPECT_EQ(summary.failed_size, Bytes(64 * kMiB));
  }
}

TEST(ReplayTest, RefusesMoreThanCanBe) {
  std::string rows;
  for (int i = 0; i < 262'145; ++i) rows += fmt::format("{},0,1,4398046511104\n", i);
  EXPECT_THROW(ReplayLog(*Static(rows), {}), InputError);
}

// --- PyTorch's allocator compared with recordings ------------------------------------------------

// Returns a small segment with a hole of 1 KiB and a segment of 20 MiB with a hole of 4 MiB.
std::vector<testing::SnapshotSegmentText> Held() {
  return {{kBase,
           "small",
           {{512, 400, "active_allocated"},
            {1024, 0, "inactive"},
            {2 * kMiB - 1536, 2 * kMiB - 1600, "active_allocated"}}},
          {kBase + 64 * kMiB,
           "large",
           {{4 * kMiB, 0, "inactive"}, {16 * kMiB, 15 * kMiB + 1, "active_allocated"}}}};
}

TEST(PyTorchReplayTest, AdoptsTheStartAsItWas) {
  // 4 MiB fit into the hole of the large segment. One byte more needs a new segment.
  const auto log =
      ParseMemoryLog(MakeSnapshot(Held(), {{"alloc", kBase + 64 * kMiB, 4 * kMiB},
                                           {"alloc", kBase + 512, 1024},
                                           {"free_completed", kBase + 512, 1024},
                                           {"free_completed", kBase + 64 * kMiB, 4 * kMiB}}),
                     "log");
  const ReplayResult result = ReplayOn(*log, "pytorch", Bytes::Unlimited(), {}, true);
  EXPECT_TRUE(result.compared);
  EXPECT_EQ(result.deviates_at, std::nullopt);
  EXPECT_EQ(result.segments, 0u);
  EXPECT_EQ(result.peak_reserved, Bytes::MiB(22));
  // The rest of the block of 16 MiB is too small to be split off, so it belongs to the block.
  EXPECT_EQ(result.peak_allocated, Bytes::MiB(22));

  const auto other =
      ParseMemoryLog(MakeSnapshot(Held(), {{"segment_alloc", kBase + 128 * kMiB, 20 * kMiB},
                                           {"alloc", kBase + 128 * kMiB, 4 * kMiB + 1},
                                           {"free_completed", kBase + 128 * kMiB, 4 * kMiB + 1},
                                           {"segment_free", kBase + 128 * kMiB, 20 * kMiB}}),
                     "log");
  const ReplayResult more = ReplayOn(*other, "pytorch", Bytes::Unlimited(), {}, true);
  EXPECT_EQ(more.deviates_at, std::nullopt);
  EXPECT_EQ(more.segments, 1u);
  EXPECT_EQ(more.peak_reserved, Bytes::MiB(42));
}

// A block of 3 MiB took a free block of 3.5 MiB, too little larger to be split. The block that
// follows it reveals its extent.
TEST(PyTorchReplayTest, ABlockOfTheStartReachesToTheFirstOnePlacedBehindIt) {
  const int64_t behind = kBase + 7 * kMiB / 2;
  std::vector<testing::SnapshotEventText> events{{"free_completed", kBase, 3 * kMiB},
                                                 {"alloc", kBase, 15 * kMiB / 4}};
  const auto deviation = [&](const char* type, int64_t reaches) {
    const auto log = ParseMemoryLog(
        MakeSnapshot(
            {{kBase,
              type,
              {{15 * kMiB / 4, 15 * kMiB / 4, "active_allocated"}, {20 * kMiB - 15 * kMiB / 4}}}},
            events),
        "log");
    EXPECT_EQ(log->start().blocks[0].taken, Bytes(reaches));
    return ReplayOn(*log, "pytorch", Bytes::Unlimited(), {}, true).deviates_at;
  };
  EXPECT_EQ(deviation("large", 0), std::nullopt);
  events = {{"alloc", behind, 2 * kMiB},
            {"free_completed", behind, 2 * kMiB},
            {"free_completed", kBase, 3 * kMiB},
            {"alloc", kBase, 15 * kMiB / 4}};
  EXPECT_EQ(deviation("large", 7 * kMiB / 2), std::nullopt);
}

// At the start 4 MiB of small pages are mapped. The log unmaps the lower two MiB, and its last
// request maps them again. The beginning of the range follows from these events.
TEST(PyTorchReplayTest, ExpandableSegmentsBeginWithThePagesThatTheyHad) {
  testing::SnapshotSettingsText settings;
  settings.expandable_segments = true;
  const int64_t upper = kBase + 2 * kMiB;
  const std::vector<testing::SnapshotEventText> events{
      {"free_completed", kBase, kMiB},   {"segment_unmap", kBase, 2 * kMiB},
      {"alloc", upper + kMiB / 2, kMiB},  // in the rest of the page that stayed mapped
      {"segment_map", kBase, 2 * kMiB},  {"alloc", kBase, kMiB},
  };
  const auto log = ParseMemoryLog(MakeSnapshot({{kBase,
                                                 "small",
                                                 {{kMiB, kMiB, "active_allocated"},
                                                  {kMiB},
                                                  {kMiB / 2, kMiB / 2, "active_allocated"},
                                                  {kMiB, kMiB, "active_allocated"},
                                                  {kMiB / 2}}}},
                                               events, settings),
                                  "log");
  const MemoryLogStart& start = log->start();
  ASSERT_TRUE(start.records_segments);
  ASSERT_EQ(start.segments.size(), 1u);
  EXPECT_EQ(start.segments[0],
            (StartSegment{static_cast<uint64_t>(kBase), Bytes::MiB(4), 0, true, true}));
  ASSERT_EQ(start.blocks.size(), 2u);
  const auto pytorch = MakeAllocator(PyTorchAsRecorded(*log), Bytes::Unlimited(), Bytes(512));
  const ReplayResult result = ReplayLog(*log, {{"pytorch", pytorch.get(), true}}).results[0];
  EXPECT_TRUE(result.compared);
  EXPECT_EQ(result.deviates_at, std::nullopt);
  EXPECT_EQ(result.peak_reserved, Bytes::MiB(4));
}

TEST(PyTorchReplayTest, WhatIsHeldFromTheStartKeepsItsFrame) {
  const auto log = ParseMemoryLog(
      MakeSnapshot({{kBase, "large", {{20 * kMiB, 20 * kMiB, "active_allocated", "train.py"}}}},
                   {{"alloc", kBase + 64 * kMiB, 4 * kMiB}}),
      "log");
  EXPECT_EQ(TextOf(log->stack(log->StackOfStart(0)).at(0)), "train.py:7 train");
  const ReplayResult result = ReplayOn(*log, "pytorch", Bytes::MiB(22));
  ASSERT_FALSE(result.fits());
  ASSERT_EQ(result.failure->holders.size(), 1u);
  EXPECT_EQ(result.failure->holders[0].frame, "train.py:7 train");
}

TEST(PyTorchReplayTest, FindsTheFirstDeviation) {
  // The first log takes a segment although the hole has room. The second places a block in a
  // segment that it never took.
  const auto extra =
      ParseMemoryLog(MakeSnapshot(Held(), {{"alloc", kBase + 512, 1024},
                                           {"segment_alloc", kBase + 128 * kMiB, 20 * kMiB},
                                           {"alloc", kBase + 128 * kMiB, 4 * kMiB}}),
                     "log");
  EXPECT_EQ(ReplayOn(*extra, "pytorch", Bytes::Unlimited(), {}, true).deviates_at, 2u);
  const auto missing = ParseMemoryLog(
      MakeSnapshot(Held(), {{"alloc", kBase + 512, 1024}, {"alloc", kBase + 128 * kMiB, 5 * kMiB}}),
      "log");
  EXPECT_EQ(ReplayOn(*missing, "pytorch", Bytes::Unlimited(), {}, true).deviates_at, 1u);
}

TEST(PyTorchReplayTest, EmptiesTheCacheWhereItWasEmptied) {
  const auto at = [](int64_t segment) { return kBase + segment * 64 * kMiB; };
  const auto log = ParseMemoryLog(MakeSnapshot({}, {{"segment_alloc", at(1), 20 * kMiB},
                                                    {"alloc", at(1), 2 * kMiB},
                                                    {"segment_alloc", at(2), 32 * kMiB},
                                                    {"alloc", at(2), 32 * kMiB},
                                                    {"free_completed", at(2), 32 * kMiB},
                                                    {"segment_free", at(2), 32 * kMiB},
                                                    {"segment_alloc", at(3), 30 * kMiB},
                                                    {"alloc", at(3), 30 * kMiB}}),
                                  "log");
  const ReplayResult result = ReplayOn(*log, "pytorch", Bytes::Unlimited(), {}, true);
  EXPECT_EQ(result.deviates_at, std::nullopt);
  EXPECT_EQ(result.peak_reserved, Bytes::MiB(52));
  EXPECT_EQ(result.segments, 3u);
}

TEST(PyTorchReplayTest, EachStreamHasPoolsOfItsOwn) {
  const auto log = ParseMemoryLog(MakeSnapshot({}, {{"segment_alloc", kBase, 2 * kMiB, 7},
                                                    {"alloc", kBase, 512, 7},
                                                    {"free_completed", kBase, 512, 7},
                                                    {"segment_alloc", kBase + 64 * kMiB, 2 * kMiB},
                                                    {"alloc", kBase + 64 * kMiB, 512},
                                                    {"alloc", kBase, 512, 7}}),
                                  "log");
  EXPECT_EQ(ReplayOn(*log, "pytorch", Bytes::Unlimited(), {}, true).deviates_at, std::nullopt);
  EXPECT_EQ(ReplayOn(*log, "best-fit").peak_reserved, Bytes(1024));
}

TEST(PyTorchReplayTest, WhatTheStartHasCachedServesItsStreamOnly) {
  const auto replay = [](int64_t stream, bool takes_segment) {
    std::vector<testing::SnapshotEventText> events;
    if (takes_segment) events.push_back({"segment_alloc", kBase + 64 * kMiB, 2 * kMiB, stream});
    events.push_back({"alloc", takes_segment ? kBase + 64 * kMiB : kBase, 512, stream});
    std::vector<testing::SnapshotSegmentText> held{{kBase, "small", {{2 * kMiB}}, 7}};
    // At the end the first block of one of the segments is in use.
    const testing::SnapshotSegmentText used{takes_segment ? kBase + 64 * kMiB : kBase,
                                            "small",
                                            {{512, 512, "active_allocated"}, {2 * kMiB - 512}},
                                            stream};
    if (takes_segment) {
      held.push_back(used);
    } else {
      held = {used};
    }
    const auto log = ParseMemoryLog(MakeSnapshot(held, events), "log");
    return ReplayOn(*log, "pytorch", Bytes::Unlimited(), {}, true);
  };
  EXPECT_EQ(replay(7, false).deviates_at, std::nullopt);
  EXPECT_EQ(replay(0, true).deviates_at, std::nullopt);
  EXPECT_EQ(replay(0, true).segments, 1u);
}

// --- Snapshots of simulated runs ----------------------------------------------------------------

TEST(SnapshotTest, ASimulatedRunReadsBackAsWhatItPlaced) {
  const Trace trace = LoadTrace({"alexnet:8", "torch", true});
  const Device device = LoadDevice("h200");
  const RooflineCostModel cost(device);
  for (const char* name : {"liveness", "vdnn-all"}) {
    SCOPED_TRACE(name);
    PolicyLibrary library;
    const auto policy = library.Make(name);
    const Outcome outcome =
        testing::Simulate({Borrow(trace), device, Borrow(cost), Bytes::Unlimited()}, *policy);
    const auto log = ParseMemoryLog(FormatSnapshot(trace, outcome.report), "log");
    EXPECT_FALSE(log->start().pytorch);
    EXPECT_TRUE(log->start().records_segments);
    EXPECT_TRUE(log->start().blocks.empty());
    std::vector<std::pair<bool, Bytes>> placed, read;
    for (const Placement& placement : outcome.report.placements) {
      const bool takes = placement.kind == PlacementKind::kAllocate;
      if (!placement.on_device() || (!takes && placement.kind != PlacementKind::kFree)) continue;
      placed.emplace_back(takes, placement.requested);
    }
    Bytes segments;
    log->Walk([&](const MemoryEvent& event) {
      if (event.kind == MemoryEvent::Kind::kSegmentAllocate) {
        segments += event.size;
      } else {
        read.emplace_back(event.kind == MemoryEvent::Kind::kAllocate, event.size);
      }
      return true;
    });
    EXPECT_EQ(read, placed);
    EXPECT_EQ(segments, outcome.report.metrics.peak_reserved);
  }
}

// Replays the recordings of real runs, and the recordings in the directory named by
// SPILLWAY_SNAPSHOTS. Each replay must match its recording exactly.
TEST(RecordedSnapshotTest, PyTorchServesEveryRequestAtTheRecordedAddress) {
  std::vector<std::filesystem::path> paths;
  const auto add = [&](const std::filesystem::path& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().string().find(".snapshot.pickle") == std::string::npos) continue;
      paths.push_back(entry.path());
    }
  };
  add(testing::InSource("tests/testing/recordings"));
  ASSERT_GE(paths.size(), 9u);
  if (const char* const more = std::getenv("SPILLWAY_SNAPSHOTS")) add(more);
  for (const auto& path : paths) {
    SCOPED_TRACE(path.string());
    const auto log = OpenMemoryLog(path);
    ASSERT_TRUE(log->start().records_segments);
    const auto pytorch = MakeAllocator(PyTorchAsRecorded(*log), Bytes::Unlimited(), Bytes(512));
    const Replayed replayed = ReplayLog(*log, {{"pytorch", pytorch.get(), true}});
    const ReplayResult& result = replayed.results[0];
    EXPECT_TRUE(result.fits());
    EXPECT_TRUE(result.compared);
    EXPECT_EQ(result.deviates_at, std::nullopt);
    // In some recordings the last request failed, so the recorded peak excludes it.
    EXPECT_GE(result.peak_reserved, replayed.summary.recorded_peak_reserved);
  }
}

}  // namespace
}  // namespace spillway::testing
