// Tests of the columns of results: which columns exist, and which have a value for a given run.

#include "experiments/output/run_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <set>

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunResult Fitting() {
  RunResult result;
  result.workload = "net:4";
  result.batch = 4;
  result.memory = Bytes::GiB(1);
  result.policy = "vdnn-all";
  Metrics& metrics = result.report.metrics;
  metrics.iteration = result.iteration = Duration::Milliseconds(30);
  metrics.compute = Duration::Milliseconds(20);
  metrics.stalls.fetch = Duration::Milliseconds(7);
  metrics.stalls.drain = Duration::Milliseconds(3);
  metrics.peak_allocated = Bytes::MiB(512);
  metrics.average_allocated = Bytes::MiB(256);
  metrics.pinned_peak = result.pinned_peak = Bytes(5);
  result.pinning = Duration::Milliseconds(2);
  result.ideal = Duration::Milliseconds(10);
  result.report.bounds = {Duration::Milliseconds(20), Duration::Milliseconds(25), Bytes::MiB(128)};
  result.report.iterations = 2;
  return result;
}

Value Find(const RunResult& result, std::string_view name) {
  for (const Column<RunResult>& column : ResultColumns()) {
    if (column.name == name) return column.get(result);
  }
  ADD_FAILURE() << name;
  return {};
}

std::string Header(const RunResult& result) {
  const std::string csv = FormatCsv(ResultColumns(), std::vector{result});
  return csv.substr(0, csv.find("\r\n"));
}

TEST(RunResultTest, EachColumnHasANameOfItsOwnAndAMeaning) {
  std::set<std::string> names;
  for (const Column<RunResult>& column : ResultColumns()) {
    EXPECT_TRUE(names.insert(column.name).second) << column.name;
    EXPECT_FALSE(column.help.empty()) << column.name;
    const bool is_number = column.type.starts_with("integer") || column.type.starts_with("number");
    EXPECT_EQ(column.unit.empty(), !is_number) << column.name;
    EXPECT_EQ(column.name.ends_with("_ms"), column.unit == "ms") << column.name;
    EXPECT_EQ(column.name.ends_with("_bytes"), column.unit == "B") << column.name;
  }
}

TEST(RunResultTest, FiguresOfARunThatFits) {
  const RunResult result = Fitting();
  const std::pair<const char*, Value> kCases[] = {
      {"status", "ok"},
      {"memory_bytes", int64_t{1} << 30},
      {"iteration_ms", 30.0},
      {"stall_ms", 10.0},
      {"stall_fetch_ms", 7.0},
      {"slowdown", 3.0},
      {"samples_per_second", 4 / 0.03},
      {"time_over_bound", 1.2},
      {"memory_over_bound", 4.0},
      {"pinned_peak_bytes", int64_t{5}},
      {"iterations", int64_t{2}},
      {"steady", false},
      {"reason", Value()},
  };
  for (const auto& [name, value] : kCases) EXPECT_EQ(Find(result, name), value) << name;
  RunResult unlimited = result;
  unlimited.memory = Bytes::Unlimited();
  EXPECT_EQ(Find(unlimited, "memory_bytes"), Value());
}

TEST(RunResultTest, WhatDoesNotFitHasNoFigures) {
  RunResult result = Fitting();
  result.report.out_of_memory.emplace();
  std::vector<std::string> numbers;
  for (const Column<RunResult>& column : ResultColumns()) {
    if (!column.IsIn(result) || column.unit.empty()) continue;
    if (column.get(result) != Value()) numbers.push_back(column.name);
  }
  EXPECT_THAT(numbers, ElementsAre("batch", "memory_bytes", "bound_layer_bytes", "missing_bytes",
                                   "memory_floor_bytes", "in_core_peak_bytes"));
  EXPECT_EQ(Find(result, "status"), Value("oom"));
  EXPECT_THAT(std::get<std::string>(Find(result, "reason")), HasSubstr("out of"));
}

TEST(RunResultTest, AnOrderOfExecutionIsNoTime) {
  RunResult result = Fitting();
  result.timed = false;
  for (const Column<RunResult>& column : ResultColumns()) {
    const bool timed = column.unit == "ms" || column.unit == "1/s" ||
                       column.name.starts_with("avg_") || column.name == "slowdown" ||
                       column.name == "time_over_bound";
    if (timed) {
      EXPECT_EQ(column.get(result), Value()) << column.name;
    }
  }
  EXPECT_EQ(Find(result, "peak_allocated_bytes"), Value(int64_t{512} << 20));
}

TEST(RunResultTest, ColumnsOfCompressionAndExecutionAreThereWhereTheyBelong) {
  RunResult result = Fitting();
  EXPECT_THAT(Header(result), ::testing::EndsWith(",in_core_peak_bytes,samples_per_second"));
  result.executed = true;
  EXPECT_THAT(Header(result),
              ::testing::EndsWith(",samples_per_second,loss,weights_digest,against,same_bits"));
  result.compresses = true;
  EXPECT_THAT(Header(result),
              ::testing::EndsWith(
                  ",plain_iteration_ms,compression_hides,loss,weights_digest,against,same_bits"));

  EXPECT_EQ(Find(result, "offloaded_storages"), Value(Nested{"[]"}));
  result.compression.emplace();
  result.compression->storages = 1;
  result.compression->plain_peak = Bytes(1000);
  result.compression->pinned_peak = Bytes(300);
  result.compression->pageable_peak = Bytes(800);
  result.compression->offloaded.push_back({TensorId{0}, Bytes(1000), 0.5, true, Bytes(800)});
  result.offloaded = {"conv1.y"};
  EXPECT_EQ(Find(result, "saved_bytes"), Value(int64_t{-100}));
  EXPECT_EQ(Find(result, "compress_ms"), Value());  // only predictions have times
  EXPECT_EQ(Find(result, "offloaded_storages"),
            Value(Nested{R"([{"tensor": "conv1.y", "bytes": 1000, "density": 0.5, )"
                         R"("compressed": true, "compressed_bytes": 800}])"}));
}

TEST(RunResultTest, TheFastestComesFirstAndMissesComeLast) {
  std::vector<RunResult> results(5, Fitting());
  const std::vector<std::string> policies{"far", "broken", "near", "slow", "fast"};
  for (size_t i = 0; i < results.size(); ++i) results[i].policy = policies[i];
  results[0].report.out_of_memory.emplace().wanted = Bytes::GiB(3);
  results[1].failure = "no plan";
  results[2].report.out_of_memory.emplace().wanted = Bytes::GiB(3);
  results[2].report.out_of_memory->stats.largest_free = Bytes::GiB(1);
  results[3].iteration = results[4].iteration + Duration::Milliseconds(1);
  std::istringstream table(FormatComparison(results));
  std::vector<std::string> begins;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string policy, second, third;
    words >> policy >> second >> third;
    begins.push_back(policy + " " + second + " " + third);
  }
  EXPECT_EQ(begins,
            (std::vector<std::string>{"policy fits time", "fast * yes", "slow yes 31.00",
                                      "near + 2", "far + 3", "broken failed -", "* the fastest"}));
  EXPECT_EQ(Find(results[2], "missing_bytes"), Value(Bytes::GiB(2).count()));
  EXPECT_EQ(Find(results[3], "missing_bytes"), Value());
}

TEST(RunResultTest, NoResultIsMarkedWhereAllAreAsFast) {
  const std::vector<RunResult> results(3, Fitting());
  EXPECT_EQ(FormatComparison(results).find('*'), std::string::npos);
  EXPECT_EQ(FormatComparison(std::span(results).first(1)).find('*'), std::string::npos);
  EXPECT_EQ(FormatCompression(results), "");
}

}  // namespace
}  // namespace spillway::testing
