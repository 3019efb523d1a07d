// Tests of the texts about a replay, on results made by hand.

#include "experiments/tools/replay/replay_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "traces/base/json.h"
#include "traces/logs/open_log.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ReplayReportTest : public ::testing::Test {
 protected:
  ReplayReportTest() : log_(ParseMemoryLog("id,lower,upper,size\na,0,2,1024\n", "log")) {
    replayed_.summary.events = replayed_.summary.records = 2;
    replayed_.summary.allocations = 1;
    replayed_.summary.lower_bound = Bytes(1000);
    ReplayResult& fits = replayed_.results.emplace_back();
    fits.allocator = "pytorch:max_split_size=2MiB,expandable_segments=true";
    fits.peak_requested = Bytes(1000);
    fits.peak_allocated = Bytes(1024);
    fits.peak_reserved = Bytes(2048);
    fits.operations = 3;
    fits.nanoseconds = 1500;
    fits.compared = true;
    fits.deviates_at = 1;
    fits.samples = {{0, 10, Bytes(1000), Bytes(1024), Bytes(2048), Bytes(512)},
                    {1, 12, Bytes(0), Bytes(0), Bytes(2048), Bytes(2048)}};
    ReplayResult& fails = replayed_.results.emplace_back();
    fails.allocator = "best-fit";
    fails.memory = Bytes(2000);
    fails.failure.emplace();
    fails.failure->event = 1;
    fails.failure->wanted = Bytes(900);
    fails.failure->stats = {Bytes(500), Bytes(512), Bytes(1024), Bytes(100)};
    fails.failure->holders = {{"", Bytes(100), 3, 3, 0, 0}, {"", Bytes(50), 4, 1, 0, 0}};
  }

  std::unique_ptr<MemoryLog> log_;
  Replayed replayed_;
};

TEST_F(ReplayReportTest, Rows) {
  EXPECT_EQ(
      FormatCsv(ReplayColumns(replayed_), replayed_.results),
      "allocator,status,peak_requested_bytes,peak_allocated_bytes,peak_reserved_bytes,"
      "lower_bound_bytes,failed_event,operations_per_second,fragmentation,over_lower_bound,"
      "largest_free_bytes,as_recorded,deviates_at,not_compared,memory_bytes,to_spare_bytes,wanted_"
      "bytes,"
      "recorded_failed_event,recorded_wanted_bytes,serves_in_bytes,largest_holder,"
      "largest_holder_bytes,remedy\r\n"
      "\"pytorch:max_split_size=2MiB,expandable_segments=true\",ok,1000,1024,2048,1000,,2000000,"
      "0.5,2.048,2048,false,1,,,,,,,,,,\r\n"
      "best-fit,oom,0,0,0,1000,1,,0,,100,,,the log does not tell which segments there "
      "were,2000,,900,,,,,,\r\n");
}

TEST_F(ReplayReportTest, ARequestThatFailsAtTheStartHasNoEvent) {
  replayed_.results[1].failure->at_start = true;
  EXPECT_THAT(FormatCsv(ReplayColumns(replayed_), replayed_.results),
              HasSubstr("best-fit,oom,0,0,0,1000,,,"));
}

TEST_F(ReplayReportTest, Json) {
  const std::string plain = FormatReplayJson(*log_, replayed_, std::nullopt);
  EXPECT_THAT(plain, HasSubstr("  \"log\": {\n    \"format\": "));
  EXPECT_THAT(plain, HasSubstr("    \"settings_not_modelled\": []\n  },\n  \"rows\": ["));
  EXPECT_THAT(plain, Not(HasSubstr("out_of_memory")));

  const std::vector<Remedy> remedies{{"best-fit", {"pytorch", "planned"}, Bytes(4096)}};
  const std::string text = FormatReplayJson(*log_, replayed_, remedies);
  EXPECT_THAT(text, HasSubstr("      \"event\": 1,\n"));
  EXPECT_THAT(text, HasSubstr(R"("holders": [{"size_bytes": 100, "blocks": 3, "from_start": 3, )"
                              R"("first_event": null, "last_event": null, "last": null}, )"
                              R"({"size_bytes": 50, "blocks": 4, "from_start": 1, )"
                              R"("first_event": 0, "last_event": 0, "last": )"));
  EXPECT_THAT(text, HasSubstr(R"("would_fit_with": ["pytorch", "planned"])"));
  EXPECT_THAT(text, HasSubstr("\"would_fit_in_bytes\": 4096\n"));
}

TEST_F(ReplayReportTest, Table) {
  const std::string text = FormatReplayTable(*log_, replayed_);
  EXPECT_THAT(text, HasSubstr("2 events, 0 blocks live at its start"));
  EXPECT_THAT(text, HasSubstr("2.048x"));
  EXPECT_THAT(text, HasSubstr("until event 1"));
  EXPECT_THAT(text, HasSubstr("oom at event 1"));
}

TEST_F(ReplayReportTest, OutOfMemorySaysWhoHoldsIt) {
  const std::vector<Remedy> remedies{{"best-fit", {}, std::nullopt}};
  const std::string text = FormatOutOfMemory(*log_, replayed_, remedies, Bytes(1024));
  EXPECT_THAT(text, HasSubstr("best-fit: out of memory at event 1: 900 B requested"));
  EXPECT_THAT(text, HasSubstr("388 B too little, wherever they lie"));
  EXPECT_THAT(text, HasSubstr("3 x 100 B, from before the log\n"));
  EXPECT_THAT(text, HasSubstr("4 x 50 B, since event 0"));
  EXPECT_THAT(text, HasSubstr("no other allocator serves this log"));
}

TEST_F(ReplayReportTest, SamplesAsCsvAndAsCounters) {
  EXPECT_EQ(FormatReplayCsv(replayed_),
            "allocator,event,time_us,requested_bytes,allocated_bytes,reserved_bytes,"
            "largest_free_bytes,fragmentation\r\n"
            "\"pytorch:max_split_size=2MiB,expandable_segments=true\",0,10,1000,1024,2048,512,"
            "0.500000\r\n"
            "\"pytorch:max_split_size=2MiB,expandable_segments=true\",1,12,0,0,2048,2048,"
            "1.000000\r\n");
  const std::string trace = FormatReplayTrace(replayed_, {"1.0", "my.log", "0123"});
  EXPECT_THAT(trace, HasSubstr(R"("otherData": {
    "tool": "spillway",
    "version": "1.0",
    "log": "my.log",
    "run_sha256": "0123"
  })"));
  EXPECT_THAT(trace, HasSubstr(R"({"ph": "C", "name": "device memory", "pid": 1, "ts": 2, )"
                               R"("args": {"requested": 0, "allocated": 0, "reserved": 2048}})"));
}

}  // namespace
}  // namespace spillway::testing
