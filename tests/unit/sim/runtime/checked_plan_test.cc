#include "sim/runtime/checked_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/fixtures.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns one op of 4 samples with two slots. The first slot has a fast kernel with 7 bytes of
// workspace and a slow kernel without workspace. The second has one kernel with 5 bytes.
Trace TwoSlots() {
  Trace trace = TraceBuilder()
                    .Tensor("x", TensorKind::kInput, 1)
                    .Tensor("y", TensorKind::kActivation, 1)
                    .Op("f", Phase::kForward, {"x"}, {"y"})
                    .Build();
  trace.ops[0].batch = 4;
  trace.ops[0].slots = {{"a", "first", 0, Bytes(0)}, {"b", "second", 0, Bytes(0)}};
  return trace;
}

FixedCost TwoSlotsCost() {
  FixedCost cost;
  cost.Set("first", {{"fast", Duration::Nanoseconds(10), Bytes(7)},
                     {"slow", Duration::Nanoseconds(30), Bytes(0)}});
  cost.Set("second", {{"only", Duration::Nanoseconds(20), Bytes(5)}});
  return cost;
}

struct CheckedPlanTest : ::testing::Test {
  const Trace trace = TwoSlots();
  const FixedCost cost = TwoSlotsCost();
  const Liveness liveness{trace};
  const OpTable ops{trace, liveness, cost};
  CheckedPlan choice{trace, liveness, ops, cost};

  std::string ErrorOf(const KernelPlan& plan) {
    try {
      choice.Take(OpId{0}, plan);
    } catch (const PolicyError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(CheckedPlanTest, NoPlanMeansTheFastestKernels) {
  choice.Take(OpId{0}, {});
  EXPECT_THAT(choice.runs(), ElementsAre(KernelRun{0, 0, 4}, KernelRun{1, 0, 4}));
  EXPECT_EQ(choice.time(), Duration::Nanoseconds(30));
  EXPECT_EQ(choice.workspace(), Bytes(7));
}

TEST_F(CheckedPlanTest, RunsFollowEachOther) {
  choice.Take(OpId{0}, {{0, 1, 3}, {0, 0, 1}, {1, 0, 4}});
  EXPECT_EQ(choice.time(), Duration::Nanoseconds(60));
  EXPECT_EQ(choice.workspace(), Bytes(7));
  choice.Take(OpId{0}, {{0, 1, 4}, {1, 0, 4}});  // the previous plan has no effect
  EXPECT_EQ(choice.time(), Duration::Nanoseconds(50));
  EXPECT_EQ(choice.workspace(), Bytes(5));
}

// Three ops with one slot each. Two read x, the third reads another tensor.
TEST(CheckedPlanWarmthTest, BehindOneAlikeAKernelTakesItsTimeAlone) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 1)
                          .Tensor("y", TensorKind::kActivation, 1)
                          .Tensor("z", TensorKind::kActivation, 1)
                          .Tensor("u", TensorKind::kInput, 1)
                          .Tensor("v", TensorKind::kActivation, 1)
                          .Op("a", Phase::kForward, {"x"}, {"y"})
                          .Op("b", Phase::kForward, {"x"}, {"z"})
                          .Op("c", Phase::kForward, {"u"}, {"v"})
                          .Build();
  const Duration in_sequence = Duration::Nanoseconds(3);
  FixedCost cost;
  for (const Op& op : trace.ops) {
    cost.Set(op.slots[0].signature, {{"fast", Duration::Nanoseconds(10), {}, true, in_sequence},
                                     {"slow", Duration::Nanoseconds(30), {}, true, in_sequence}});
  }
  const Liveness liveness(trace);
  const OpTable ops(trace, liveness, cost);
  CheckedPlan plan(trace, liveness, ops, cost);
  const auto time = [&](int op, uint32_t kernel) {
    plan.Take(static_cast<OpId>(op), {{0, kernel, trace.ops[0].batch}});
    return plan.time().picoseconds() / 1000;
  };
  EXPECT_EQ(time(0, 0), 10);
  EXPECT_EQ(time(1, 0), 7);
  EXPECT_EQ(time(1, 0), 7) << "it can run twice";
  EXPECT_EQ(time(0, 1), 30) << "another algorithm is other code";
  EXPECT_EQ(time(2, 1), 30) << "its data is not there";
  EXPECT_EQ(time(2, 1), 27);
  plan.BeginIteration();
  EXPECT_EQ(time(2, 1), 30);
}

// The trace has one op, which follows itself in the next iteration.
TEST(CheckedPlanWarmthTest, EveryIterationBeginsBehindNothing) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 1)
                          .Tensor("y", TensorKind::kActivation, 1)
                          .Op("a", Phase::kForward, {"x"}, {"y"})
                          .Build();
  FixedCost cost;
  cost.Set(trace.ops[0].slots[0].signature,
           {{"only", Duration::Nanoseconds(10), {}, true, Duration::Nanoseconds(3)}});
  Policy policy;
  const Report report = testing::RunSim(trace, cost, policy, {}).report;
  EXPECT_EQ(report.metrics.iteration, Duration::Nanoseconds(10));
}

TEST_F(CheckedPlanTest, MicroBatchesFollowOneAnother) {
  FixedCost warm;
  warm.Set("first", {{"fast", Duration::Nanoseconds(10), {}, true, Duration::Nanoseconds(3)}});
  warm.Set("second", {{"fast", Duration::Nanoseconds(20), {}, true, Duration::Nanoseconds(3)}});
  CheckedPlan plan(trace, liveness, ops, warm);
  plan.Take(OpId{0}, {{0, 0, 2}, {0, 0, 2}, {1, 0, 2}, {1, 0, 2}});
  EXPECT_EQ(plan.time(), Duration::Nanoseconds(10 + 7 + 20 + 17));
}

TEST_F(CheckedPlanTest, RefusesAPlanThatDoesNotCoverTheOp) {
  EXPECT_THAT(ErrorOf({{1, 0, 4}}), HasSubstr("ChooseKernels(f): slot 1 with batch 4"));
  EXPECT_THAT(ErrorOf({{0, 0, 5}}), HasSubstr("slot 0 with batch 5 does not continue slot 0"));
  EXPECT_THAT(ErrorOf({{0, 0, 0}}), HasSubstr("slot 0 with batch 0"));
  EXPECT_THAT(ErrorOf({{0, 0, 3}, {1, 0, 4}}), HasSubstr("with 1 samples left"));
  EXPECT_THAT(ErrorOf({{0, 2, 4}}), HasSubstr("no kernel 2 in slot a, which has 2"));
  EXPECT_THAT(ErrorOf({{0, 0, 4}}), HasSubstr("the plan ends in slot 0 of 2 with 0 samples left"));
  EXPECT_THAT(ErrorOf({{0, 0, 4}, {1, 0, 4}, {2, 0, 4}}), HasSubstr("slot 2 with batch 4"));
}

}  // namespace
}  // namespace spillway::testing
