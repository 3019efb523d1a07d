#include "sim/runtime/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

// To recompute b for f3, f1 runs again. It overwrites a, so f2 must also run again and must be
// recomputable.
TEST(RecomputeTest, RecomputingLeavesNothingStale) {
  for (const Phase phase : {Phase::kForward, Phase::kUpdate}) {
    const Trace trace = TraceBuilder()
                            .Tensor("x", TensorKind::kInput, 10)
                            .Tensor("a", TensorKind::kActivation, 10)
                            .Tensor("b", TensorKind::kActivation, 10)
                            .Tensor("c", TensorKind::kActivation, 10)
                            .Op("f1", Phase::kForward, {"x"}, {"a", "b"})
                            .Op("f2", phase, {"x"}, {"a"})
                            .Op("f3", Phase::kForward, {"b", "x"}, {"c"})
                            .Op("f4", Phase::kForward, {"a"}, {"c"})
                            .Build();
    ASSERT_EQ(trace.ops[1].recomputable, phase == Phase::kForward);
    ScriptedPolicy policy;
    policy.after = [&](PolicyContext& context, const std::string& op) {
      if (op != "f2" || context.recomputing()) return;
      EXPECT_EQ(context.Evict(Find(context, "b")), phase == Phase::kForward);
    };
    const RunResult result = RunSim(trace, FixedCost(), policy);
    EXPECT_THAT(result.violations, IsEmpty());
    EXPECT_EQ(result.report.metrics.recomputed_ops, phase == Phase::kForward ? 2 : 0);
  }
}

// f2 updates a in place. To run f2 again, f1 must run again too, although a has data.
TEST(RecomputeTest, AnInPlaceUpdateIsRepeatedFromItsBeginning) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("a", TensorKind::kActivation, 10)
                          .Tensor("b", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x"}, {"a"})
                          .Op("f2", Phase::kForward, {"a"}, {"a", "b"})
                          .Op("b2", Phase::kBackward, {"x", "a", "b"}, {"b"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f2" || context.recomputing()) return;
    EXPECT_TRUE(context.Evict(Find(context, "b")));
  };
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.recomputed_ops, 2);
}

// Recomputing b needs a, and recomputing a runs f1 again, which overwrites s. For f5 that is
// possible, because f4 has overwritten s by then. For f3 it is not: s holds the output of u1, which
// may not run again.
TEST(RecomputeTest, WhatIsRecomputedForALaterUseCanBeForAnEarlierOne) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Tensor("s", TensorKind::kActivation, 10)
                          .Tensor("a", TensorKind::kActivation, 10)
                          .Tensor("b", TensorKind::kActivation, 10)
                          .Tensor("c", TensorKind::kActivation, 10)
                          .Op("f0", Phase::kForward, {"x"}, {"y"})
                          .Op("f1", Phase::kForward, {"x", "y"}, {"a", "s", "y"})
                          .Op("u1", Phase::kUpdate, {"x"}, {"s"})
                          .Op("f2", Phase::kForward, {"a"}, {"b"})
                          .Op("f3", Phase::kForward, {"b"}, {"c"})
                          .Op("f4", Phase::kForward, {"x"}, {"y", "s"})
                          .Op("f5", Phase::kForward, {"x", "a", "s", "y"}, {"c"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f2" || context.recomputing()) return;
    EXPECT_TRUE(context.Evict(Find(context, "b")));
    EXPECT_FALSE(context.Evict(Find(context, "a")));
  };
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.recomputed_ops, 1);
}

// In random sequences, a storage is recomputable up to the least next use of those dropped since.
TEST(RecomputeTest, EvictionsSayUpToWhichOpAStorageCanBeRecomputed) {
  std::mt19937_64 random(1);
  constexpr uint32_t kStorages = 12;
  for (int round = 0; round < 100; ++round) {
    Evictions evictions(kStorages);
    std::vector<std::optional<uint32_t>> until(kStorages);
    for (int step = 0; step < 40; ++step) {
      const auto dropped = static_cast<uint32_t>(random() % kStorages);
      const auto next = static_cast<uint32_t>(random() % 50);
      evictions.Note(TensorId{dropped}, OpId{next});
      for (auto& bound : until) bound = bound ? std::min(*bound, next) : bound;
      until[dropped] = next;
      for (uint32_t i = 0; i < kStorages; ++i) {
        const auto at = static_cast<uint32_t>(random() % 50);
        EXPECT_EQ(evictions.CanRecompute(TensorId{i}, OpId{at}), until[i] && at <= *until[i]);
      }
    }
  }
}

// In the i-th of n layers, backward mirrors forward. Every storage but the first can be dropped,
// because the one before it can be recomputed for the same use.
TEST(RecomputeTest, AChainOfDroppedStoragesIsRecomputed) {
  constexpr int kLayers = 6;
  TraceBuilder builder;
  builder.Tensor("t0", TensorKind::kInput, 10).Tensor("g", TensorKind::kGradient, 10);
  const auto name = [](int i) { return "t" + std::to_string(i); };
  for (int i = 1; i <= kLayers; ++i) {
    builder.Tensor(name(i), TensorKind::kActivation, 10)
        .Op("f" + std::to_string(i), Phase::kForward, {name(i - 1)}, {name(i)});
  }
  for (int i = kLayers; i >= 1; --i) {
    builder.Op("b" + std::to_string(i), Phase::kBackward, {name(i), name(i - 1)}, {"g"});
  }
  const Trace trace = builder.Build();
  ScriptedPolicy policy;
  policy.after = [&](PolicyContext& context, const std::string& op) {
    if (op[0] != 'f' || op == "f1" || context.recomputing()) return;
    EXPECT_TRUE(context.Evict(Find(context, name(std::stoi(op.substr(1)) - 1)))) << op;
  };
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_GE(result.report.metrics.recomputed_ops, kLayers - 1);
}

}  // namespace
}  // namespace spillway::testing
