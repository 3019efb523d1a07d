// Tests of schedules: a run takes at most the memory that they expect.

#include "policies/recorded/step_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "policies/recorded/step_executor.h"
#include "policies/recorded/step_memory.h"
#include "tests/testing/fixtures.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

constexpr uint32_t kDepth = 7;

// Returns a recorded chain x -> y1 -> ... -> y7 whose results autograd saves, and whose backward
// takes them one at a time, the last one first. It reads x at its end.
Trace DeepChain(const std::vector<int64_t>& sizes) {
  TraceBuilder builder;
  const auto y = [](uint32_t i) { return i == 0 ? "x" : "y" + std::to_string(i); };
  const auto d = [](uint32_t i) { return "d" + std::to_string(i); };
  builder.Tensor("x", TensorKind::kInput, 1);
  for (uint32_t i = 1; i <= kDepth; ++i) {
    builder.Tensor(y(i), TensorKind::kActivation, sizes[i - 1]);
  }
  for (uint32_t i = kDepth; i > 0; --i) builder.Tensor(d(i), TensorKind::kGradient, sizes[i - 1]);
  for (uint32_t i = 1; i <= kDepth; ++i) {
    builder.Op("f" + std::to_string(i), Phase::kForward, {y(i - 1)}, {y(i)}, OpType::kConv2d, "l");
  }
  for (uint32_t i = kDepth; i > 0; --i) {
    // b7 begins with nothing but y7.
    const std::string before = i == kDepth ? y(i) : d(i + 1);
    builder.Op("b" + std::to_string(i), Phase::kBackward, {y(i), before, i == 1 ? "x" : y(i)},
               {d(i)}, OpType::kConv2d, "l");
  }
  Trace trace = builder.Build();
  trace.recording.emplace().framework = "PyTorch";
  for (Op& op : trace.ops) op.recorded.emplace();
  StepHooks& hooks = trace.hooks.emplace();
  hooks.offload = hooks.prefetch = hooks.evict = Duration();
  for (uint32_t i = 1; i <= kDepth; ++i) {
    trace.saved.push_back({TensorId{i}, i, {2 * kDepth - i}});
    hooks.places.push_back({i, 1, i == kDepth ? 1u : 0u});
  }
  for (uint32_t i = kDepth + 1; i < 2 * kDepth; ++i) hooks.places.push_back({i, 0, 1});
  trace.Validate();
  return trace;
}

class StepScheduleTest : public ::testing::Test {
 protected:
  void Take(const Trace& trace, const StepFates& fates, int64_t budget) {
    const Liveness liveness(trace);
    const StepPlaces places(trace, liveness);
    const StepMemory memory(trace, cost_, places);
    ASSERT_EQ(memory.movables().size(), fates.size());
    StepDraft draft{fates, {}, std::vector<double>(fates.size())};
    for (size_t i = 0; i < fates.size(); ++i) {
      const StepMemory::Movable& movable = memory.movables()[i];
      const bool may = fates[i] == StepFate::kOffload ? movable.offload : movable.evict;
      if (!may) draft.fates[i] = StepFate::kKeep;
    }
    StepProfile profile;
    const StepPlan plan = SchedulePlan(memory, draft, budget, profile);
    StepExecutor executor(plan, places, trace.ops.size());
    const Report report = RunSim(trace, cost_, executor).report;
    used_ = UsedBytes(report);
    peak_ = report.metrics.peak_allocated;
    guess_.clear();
    for (size_t op = 0; op < trace.ops.size(); ++op) {
      guess_.push_back(std::max(profile[memory.FirstOf(op)], profile[memory.LastOf(op)]));
    }
    recomputed_ = 0;
    for (const TimelineEntry& entry : report.timeline) recomputed_ += entry.recompute ? 1 : 0;
  }

  const FixedCost cost_;
  std::vector<Bytes> used_;  // by op
  Bytes peak_;
  std::vector<int64_t> guess_;  // by op
  int recomputed_ = 0;
};

TEST_F(StepScheduleTest, ARunTakesNoMoreThanTheGuess) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> sizes;
    StepFates fates;
    for (uint32_t i = 0; i < kDepth; ++i) {
      sizes.push_back(static_cast<int64_t>(1 + random() % 40));
      fates.push_back(static_cast<StepFate>(random() % 3));
    }
    const auto budget = static_cast<int64_t>(random() % 300);
    Take(DeepChain(sizes), fates, budget);
    EXPECT_LE(peak_.count(), std::ranges::max(guess_)) << "seed " << seed;
  }
}

// y1 to y7 are evicted, and y7 is taken by b7 at once. Before b6, y1 to y6 are made, each of them
// from the one before, which then leaves:
//
//   f1 f2 f3 f4 f5 f6   b6
//   y1 y1 y2 y3 y4 y5   y6
//      y2 y3 y4 y5 y6   d7 d6      each has 10 bytes, x has 1
//   d7 d7 d7 d7 d7 d7
TEST_F(StepScheduleTest, AChainFreesWhatItHasRead) {
  const StepFates evict(kDepth, StepFate::kEvict);
  Take(DeepChain(std::vector<int64_t>(kDepth, 10)), evict, 0);
  EXPECT_EQ(guess_[kDepth + 1], 31);
  EXPECT_EQ(used_[kDepth + 1].count(), 31);
  EXPECT_EQ(recomputed_, 6 + 5 + 4 + 3 + 2 + 1);
}

TEST_F(StepScheduleTest, WhatAChainMakesStaysWhereThereIsRoom) {
  const StepFates evict(kDepth, StepFate::kEvict);
  Take(DeepChain(std::vector<int64_t>(kDepth, 10)), evict, 1000);
  EXPECT_EQ(recomputed_, 6);
}

}  // namespace
}  // namespace spillway::testing
