#include "sim/runtime/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "sim/core/check.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- The longest iteration -----------------------------------------------------------------------

std::string ErrorOfRun(const Trace& trace, const CostModel& cost, Policy& policy,
                       const RunSettings& settings = {}) {
  try {
    RunSim(trace, cost, policy, settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// Six ops of a sixth of 10^6 s each are allowed. One millisecond more per op is not.
TEST(RuntimeTest, KernelsMayAddUpToElevenDays) {
  ScriptedPolicy policy;
  const Duration sixth = Duration::Milliseconds(166'666'666);
  const RunResult result = RunSim(ChainTrace(), FixedCost(sixth), policy);
  EXPECT_EQ(result.report.metrics.iteration, sixth * 6);
  const FixedCost longer(sixth + Duration::Milliseconds(1));
  EXPECT_THAT(
      ErrorOfRun(ChainTrace(), longer, policy),
      HasSubstr("op 'b1': slot 'run' takes up to 166667 s, after 833333 s of the ops before "
                "it; an iteration of"));
  EXPECT_THAT(ErrorOfRun(ChainTrace(), longer, policy), HasSubstr("may take 1000000 s in all"));
  // Duration::Max() is twice the longest time that a clock holds.
  EXPECT_THAT(ErrorOfRun(ChainTrace(), FixedCost(Duration::Max()), policy), HasSubstr("op 'f1'"));
}

// The slowest kernel counts, even if another one is chosen.
TEST(RuntimeTest, KernelsThatAreNotChosenCountToo) {
  ScriptedPolicy policy;
  const Trace trace = ChainTrace();
  FixedCost cost;
  cost.Set(trace.ops[1].slots[0].signature,
           {{"fast", Duration::Nanoseconds(1), Bytes(0), true},
            {"slow", kLongestIteration + Duration::Nanoseconds(1), Bytes(0), true}});
  EXPECT_THAT(ErrorOfRun(trace, cost, policy), HasSubstr("op 'f2'"));
}

// A byte takes 1 ns, so each copy of y takes 6 x 10^5 s.
TEST(RuntimeTest, CopiesMayAddUpToElevenDays) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 8)
                          .Tensor("y", TensorKind::kActivation, 600'000'000'000'000)
                          .Tensor("z", TensorKind::kActivation, 8)
                          .Tensor("d", TensorKind::kGradient, 8)
                          .Op("f1", Phase::kForward, {"x"}, {"y"})
                          .Op("f2", Phase::kForward, {"y"}, {"z"})
                          .Op("b1", Phase::kBackward, {"y", "z"}, {"d"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") context.Offload(Find(context, "y"));
    if (op == "f2") context.Release(Find(context, "y"));
  };
  RunSettings settings;
  settings.device.host_memory = Bytes::Unlimited();
  EXPECT_THAT(ErrorOfRun(trace, FixedCost(), policy, settings),
              HasSubstr("op 'b1': a copy takes 600000 s, after 600000 s of kernels and copies "
                        "before it; an iteration may take 1000000 s in all"));
}

// Live at f1: x y1. f2: x y1 y2. f3: x y1 y2 y3. b3: x y1 y2 y3 d3. b2: x y1 d3 d2. b1: x d2 d1.
TEST(RuntimeTest, LivenessFreesAfterTheLastUse) {
  ScriptedPolicy policy;
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy);
  ASSERT_TRUE(result.report.fits());
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.peak_requested, Bytes(50));
  EXPECT_EQ(result.report.metrics.average_requested, Bytes((20 + 30 + 40 + 50 + 40 + 30) / 6));
  EXPECT_EQ(result.report.metrics.iteration, Duration::Nanoseconds(60));
  EXPECT_EQ(result.report.metrics.stalls.total(), Duration());
  EXPECT_TRUE(result.report.steady);
  // The first iteration still raises the high-water mark. The second and the third are equal.
  EXPECT_EQ(result.report.iterations, 3);
}

// max(l_i): b3 and b2 use three storages of 10 bytes, forward ops use two.
TEST(RuntimeTest, LayerBoundIsTheLargestOp) {
  EXPECT_EQ(LayerBound(ChainTrace(), Bytes(1)), Bytes(30));
  EXPECT_EQ(LayerBound(ChainTrace(), Bytes(512)), Bytes(3 * 512));
}

TEST(RuntimeTest, ReportsWhoHoldsTheMemoryWhenItRunsOut) {
  ScriptedPolicy policy;
  RunSettings settings;
  settings.memory = Bytes(45);
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy, settings);
  ASSERT_FALSE(result.report.fits());
  const OutOfMemory& reason = *result.report.out_of_memory;
  EXPECT_EQ(reason.op, OpId{3});
  EXPECT_EQ(reason.op_name, "b3");
  EXPECT_EQ(reason.what, "d3");
  EXPECT_EQ(reason.wanted, Bytes(10));
  EXPECT_EQ(reason.stats.largest_free, Bytes(5));
  EXPECT_EQ(reason.holders.size(), 4u);
  EXPECT_THAT(reason.Message(), HasSubstr("step 3 (b3)"));
}

//   d2h      |x |                      x leaves after its only forward use
//   compute  |f1|f2|f3|b3|b2|    |b1|  and b1 fetches it on demand
//   h2d                     | x |
TEST(RuntimeTest, AReleasedInputIsFetchedOnDemand) {
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f1") return;
    EXPECT_FALSE(context.Release(Find(context, "x")));  // no host copy yet
    EXPECT_TRUE(context.Offload(Find(context, "x")));
    EXPECT_EQ(context.Where(Find(context, "x")), Residency::kBoth);
    EXPECT_TRUE(context.Offload(Find(context, "x")));  // it has a host copy already
    EXPECT_TRUE(context.Release(Find(context, "x")));
    EXPECT_EQ(context.Where(Find(context, "x")), Residency::kOutside);
    EXPECT_FALSE(context.Offload(Find(context, "x")));
  };
  const Trace trace = ChainTrace();
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0    10 compute f1\n"
            "    0    10 d2h x\n"
            "   10    20 compute f2\n"
            "   20    30 compute f3\n"
            "   30    40 compute b3\n"
            "   40    50 compute b2\n"
            "   50    60 h2d x\n"  // into memory that b2 has just freed
            "   60    70 compute b1\n");
  EXPECT_EQ(result.report.metrics.offloaded, Bytes(10));
  EXPECT_EQ(result.report.metrics.prefetched, Bytes(10));
  EXPECT_EQ(result.report.metrics.pinned_peak, Bytes(10));
}

// With no spare byte, y2 takes the memory of x and waits until the slow copy of x has ended.
//   d2h      |------x 30------|
//   compute  |f1|  (memory)   |f2 ...
TEST(RuntimeTest, TheNextOwnerWaitsForTheCopy) {
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f1") return;
    context.Offload(Find(context, "x"));
    context.Release(Find(context, "x"));
  };
  Trace trace = TraceBuilder()
                    .Tensor("x", TensorKind::kInput, 30)
                    .Tensor("y1", TensorKind::kActivation, 10)
                    .Tensor("y2", TensorKind::kActivation, 30)
                    .Tensor("y3", TensorKind::kActivation, 10)
                    .Op("f1", Phase::kForward, {"x"}, {"y1"})
                    .Op("f2", Phase::kForward, {"y1"}, {"y2"})
                    .Op("f3", Phase::kForward, {"y2"}, {"y3"})
                    .Op("b1", Phase::kBackward, {"x", "y3"}, {"y1"})
                    .Build();
  RunSettings settings;
  settings.memory = Bytes(50);
  const RunResult result = RunSim(trace, FixedCost(), policy, settings);
  ASSERT_TRUE(result.report.fits());
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.timeline[2].interval.start, Duration::Nanoseconds(30));
  EXPECT_EQ(result.report.metrics.stalls.memory, Duration::Nanoseconds(20));
}

TEST(RuntimeTest, AFenceStallsTheNextKernel) {
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f3") return;
    context.Offload(Find(context, "y1"));
    context.Fence();
  };
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy);
  // y1 is written at 10 ns and its copy ends at 20 ns. b3 starts at 30 ns anyway.
  EXPECT_EQ(result.report.metrics.stalls.total(), Duration());
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f3") return;
    context.Offload(Find(context, "y3"));
    context.Fence();
  };
  const RunResult stalled = RunSim(ChainTrace(), FixedCost(), policy);
  EXPECT_EQ(stalled.report.metrics.stalls.fence, Duration::Nanoseconds(10));
  EXPECT_EQ(stalled.report.metrics.iteration, Duration::Nanoseconds(70));
}

TEST(RuntimeTest, VerbsSayNoWhileTheOpUsesTheTensor) {
  ScriptedPolicy policy;
  policy.before = [](PolicyContext& context, const std::string& op) {
    if (op != "b2") return;
    EXPECT_TRUE(context.Pinned(Find(context, "y1")));
    EXPECT_FALSE(context.Offload(Find(context, "y1")));
    EXPECT_FALSE(context.Evict(Find(context, "y1")));
    EXPECT_TRUE(context.Offload(Find(context, "x")));
  };
  EXPECT_THAT(RunSim(ChainTrace(), FixedCost(), policy).violations, IsEmpty());
}

// At b3 the device is full of y1, y2 and y3. The input y3 makes room for the output d3, then y1
// makes room for y3. d3, which has not been written yet, stays in place.
TEST(RuntimeTest, InputsMakeRoomForOutputsAndComeBack) {
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f1") return;
    EXPECT_TRUE(context.Offload(Find(context, "x")));
    EXPECT_TRUE(context.Release(Find(context, "x")));
  };
  int failures = 0;
  const auto give = [](PolicyContext& context, const char* name) {
    EXPECT_FALSE(context.Pinned(Find(context, name))) << name;
    return context.Offload(Find(context, name)) && context.Release(Find(context, name));
  };
  policy.on_failure = [&](PolicyContext& context, Bytes) {
    if (failures++ % 2 == 0) {
      EXPECT_FALSE(context.Pinned(Find(context, "y2")));
      return give(context, "y3");
    }
    for (const char* name : {"d3", "y3"}) {
      EXPECT_TRUE(context.Pinned(Find(context, name))) << name;
      EXPECT_FALSE(context.Offload(Find(context, name))) << name;
    }
    return give(context, "y1");
  };
  RunSettings settings;
  settings.memory = Bytes(30);
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy, settings);
  ASSERT_TRUE(result.report.fits());
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(failures, 2 * result.report.iterations);
}

// A tensor that an op reads and writes stays while the op's other outputs are placed. If that
// fails, the tensor may also leave before all operands are placed anew.
TEST(RuntimeTest, WhatAnOpUpdatesDoesNotMakeRoomForItsOutputs) {
  TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10).Tensor("a", TensorKind::kActivation, 10);
  builder.Tensor("b", TensorKind::kActivation, 10);
  builder.Op("write", Phase::kForward, {"x"}, {"a"});
  builder.Op("update", Phase::kForward, {"a"}, {"a", "b"});
  builder.Op("read", Phase::kForward, {"x", "a", "b"}, {});
  ScriptedPolicy policy;
  std::vector<std::pair<Bytes, bool>> requests;
  policy.on_failure = [&](PolicyContext& context, Bytes size) {
    requests.emplace_back(size, context.Pinned(Find(context, "a")));
    EXPECT_NE(context.Offload(Find(context, "a")), requests.back().second);
    return false;
  };
  RunSettings settings;
  settings.memory = Bytes(25);
  const RunResult result = RunSim(builder.Build(), FixedCost(), policy, settings);
  ASSERT_FALSE(result.report.fits());
  EXPECT_EQ(result.report.out_of_memory->op_name, "update");
  EXPECT_THAT(requests, ElementsAre(std::pair(Bytes(10), true), std::pair(Bytes(20), false),
                                    std::pair(Bytes(10), true)));
}

// Found by the property test of random traces. x is on the host, "both" overwrites it, and its
// input t would be recomputed from x. Once x has a block for its new contents, t cannot be evicted.
TEST(RuntimeTest, AnInputIsNotEvictedOnceItsSourceIsOverwritten) {
  TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10).Tensor("t", TensorKind::kActivation, 10);
  builder.Tensor("b", TensorKind::kActivation, 10);
  builder.Op("copy", Phase::kForward, {"x"}, {"t"});
  builder.Op("both", Phase::kForward, {"t"}, {"x", "b"});
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "copy") return;
    EXPECT_TRUE(context.Offload(Find(context, "x")));
    EXPECT_TRUE(context.Release(Find(context, "x")));
  };
  int failures = 0;
  policy.on_failure = [&](PolicyContext& context, Bytes) {
    ++failures;
    EXPECT_FALSE(context.Evict(Find(context, "t")));
    return false;
  };
  RunSettings settings;
  settings.memory = Bytes(25);
  const RunResult result = RunSim(builder.Build(), FixedCost(), policy, settings);
  EXPECT_FALSE(result.report.fits());
  EXPECT_GE(failures, 2);
}

TEST(RuntimeTest, NextUseMovesOnWhenTheOpIsIssued) {
  ScriptedPolicy policy;
  policy.before = [](PolicyContext& context, const std::string& op) {
    if (op == "f2") {
      EXPECT_EQ(context.NextUse(Find(context, "y1")), OpId{1});
    }
  };
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f2") {
      EXPECT_EQ(context.NextUse(Find(context, "y1")), OpId{4});
    }
    if (op == "b2") {
      EXPECT_EQ(context.NextUse(Find(context, "y1")), std::nullopt);
    }
  };
  RunSim(ChainTrace(), FixedCost(), policy);
}

// y1 and y2 are evicted. b3 needs y2, so f1 and f2 run again, and b2 then finds y1 recomputed.
TEST(RuntimeTest, EvictedTensorsAreRecomputedThroughTheirAncestors) {
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (context.recomputing()) return;
    if (op == "f2") {
      EXPECT_TRUE(context.Evict(Find(context, "y1")));
    }
    if (op == "f3") {
      EXPECT_TRUE(context.Evict(Find(context, "y2")));
    }
  };
  const Trace trace = ChainTrace();
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0    10 compute f1\n"
            "   10    20 compute f2\n"
            "   20    30 compute f3\n"
            "   30    40 compute again f1\n"
            "   40    50 compute again f2\n"
            "   50    60 compute b3\n"
            "   60    70 compute b2\n"
            "   70    80 compute b1\n");
  EXPECT_EQ(result.report.metrics.recomputed_ops, 2);
  EXPECT_EQ(result.report.metrics.recompute, Duration::Nanoseconds(20));
}

// conv writes s and relu overwrites it in place, so recomputing s runs both again.
TEST(RuntimeTest, InPlaceChainsAreRecomputedWhole) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("s", TensorKind::kActivation, 10)
                          .Tensor("r", TensorKind::kActivation, 10, "s")
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("conv", Phase::kForward, {"x"}, {"s"})
                          .Op("relu", Phase::kForward, {"s"}, {"r"})
                          .Op("next", Phase::kForward, {"r"}, {"y"})
                          .Op("back", Phase::kBackward, {"r", "x", "y"}, {"y"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "next") {
      EXPECT_TRUE(context.Evict(Find(context, "r")));
    }
  };
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.recomputed_ops, 2);
}

TEST(RuntimeTest, EvictSaysNoWhereNothingCanRecompute) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Tensor("z", TensorKind::kActivation, 10)
                          .Tensor("d", TensorKind::kGradient, 10)
                          .Op("f1", Phase::kForward, {"x"}, {"y"})
                          .Op("f2", Phase::kForward, {"y"}, {"z"})
                          .Op("b2", Phase::kBackward, {"y", "z"}, {"d"})
                          .Op("b1", Phase::kBackward, {"z", "d"}, {"z"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") {
      EXPECT_FALSE(context.Evict(Find(context, "x")));  // x is dead and an input
    }
    if (op == "f2" && !context.recomputing()) {
      EXPECT_FALSE(context.Evict(Find(context, "y")));  // the input of its producer is gone
      EXPECT_TRUE(context.Evict(Find(context, "z")));   // y is still needed at b2
    }
    if (op == "b2" && !context.recomputing()) {
      EXPECT_FALSE(context.Evict(Find(context, "z")));  // y is used here for the last time
      EXPECT_FALSE(context.Evict(Find(context, "d")));  // backward ops do not run again
    }
  };
  EXPECT_THAT(RunSim(trace, FixedCost(), policy).violations, IsEmpty());
}

TEST(RuntimeTest, OnAllocFailureMayMakeRoom) {
  ScriptedPolicy policy;
  policy.on_failure = [](PolicyContext& context, Bytes size) {
    EXPECT_EQ(size, Bytes(10));
    return context.Evict(Find(context, "y1"));
  };
  RunSettings settings;
  settings.memory = Bytes(40);
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy, settings);
  ASSERT_TRUE(result.report.fits());
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.recomputed_ops, 1);
  EXPECT_EQ(result.report.metrics.peak_requested, Bytes(40));
}

TEST(RuntimeTest, TrueWithoutARoomMadeIsAPolicyError) {
  ScriptedPolicy policy;
  policy.on_failure = [](PolicyContext&, Bytes) { return true; };
  RunSettings settings;
  settings.memory = Bytes(40);
  EXPECT_THROW(RunSim(ChainTrace(), FixedCost(), policy, settings), PolicyError);
}

TEST(RuntimeTest, PrefetchNeverAsksForRoom) {
  ScriptedPolicy policy;
  int failures = 0;
  policy.on_failure = [&](PolicyContext&, Bytes) { return ++failures, false; };
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") {
      context.Offload(Find(context, "x"));
      context.Release(Find(context, "x"));
    }
    if (op == "f3") {
      EXPECT_FALSE(context.Prefetch(Find(context, "x")));
    }
  };
  RunSettings settings;
  settings.memory = Bytes(35);
  RunSim(ChainTrace(), FixedCost(), policy, settings);
  EXPECT_EQ(failures, 3);  // b3's output fails at first, before b3 is placed anew, and again
}

TEST(RuntimeTest, ReservedBlocksAreSharedAndHeldForTheRun) {
  ScriptedPolicy policy;
  policy.plan = [](PolicyContext& context, const std::string&) {
    const std::array gradients{Find(context, "d3"), Find(context, "d1")};
    EXPECT_TRUE(context.Reserve(gradients, Bytes(25)));
    EXPECT_FALSE(context.Reserve(gradients, Bytes(25)));  // they have a block already
  };
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  // 25 bytes are reserved, and x, y1, y2 and y3 are live at b3.
  EXPECT_EQ(result.report.metrics.peak_requested, Bytes(65));
}

TEST(RuntimeTest, SharingABlockWhileBothLiveIsAPolicyError) {
  ScriptedPolicy policy;
  policy.plan = [](PolicyContext& context, const std::string&) {
    const std::array gradients{Find(context, "d3"), Find(context, "d2")};
    context.Reserve(gradients, Bytes(0));
  };
  EXPECT_THROW(RunSim(ChainTrace(), FixedCost(), policy), PolicyError);
}

TEST(RuntimeTest, ReserveOutsidePlanIsAPolicyError) {
  ScriptedPolicy policy;
  policy.before = [](PolicyContext& context, const std::string&) {
    context.ReserveWorkspace(Bytes(1));
  };
  EXPECT_THROW(RunSim(ChainTrace(), FixedCost(), policy), PolicyError);
}

TEST(RuntimeTest, WorkspaceLivesForTheOpOnly) {
  FixedCost cost;
  cost.Set("f2", {{"fast", Duration::Nanoseconds(4), Bytes(100)},
                  {"small", Duration::Nanoseconds(8), Bytes(1)}});
  ScriptedPolicy policy;
  EXPECT_EQ(RunSim(ChainTrace(), cost, policy).report.metrics.peak_requested, Bytes(130));
  policy.choose = [](PolicyContext& context, OpId op) -> KernelPlan {
    return {{0, LeastWorkspace(context.kernels(op, 0)), context.trace().op(op).batch}};
  };
  const RunResult small = RunSim(ChainTrace(), cost, policy);
  EXPECT_EQ(small.report.metrics.peak_requested, Bytes(50));
  EXPECT_EQ(small.report.metrics.iteration, Duration::Nanoseconds(58));
}

TEST(RuntimeTest, KernelPlansMustCoverTheBatch) {
  ScriptedPolicy policy;
  for (const KernelPlan& bad : {KernelPlan{{0, 7, 1}}, KernelPlan{{1, 0, 1}}, KernelPlan{{0, 0, 2}},
                                KernelPlan{{0, 0, 1}, {0, 0, 1}}}) {
    policy.choose = [&](PolicyContext&, OpId) { return bad; };
    EXPECT_THROW(RunSim(ChainTrace(), FixedCost(), policy), PolicyError);
  }
}

TEST(RuntimeTest, ChargedInputsAreCopiedFirst) {
  ScriptedPolicy policy;
  RunSettings settings;
  settings.options.charge_input = true;
  const RunResult result = RunSim(ChainTrace(), FixedCost(), policy, settings);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.iteration, Duration::Nanoseconds(70));
  EXPECT_EQ(result.report.metrics.stalls.fetch, Duration::Nanoseconds(10));
}

TEST(RuntimeTest, EveryChargedInputArrivesOnTheHost) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("labels", TensorKind::kInput, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x", "labels"}, {"y"})
                          .Build();
  ScriptedPolicy policy;
  RunSettings settings;
  settings.options.charge_input = true;
  const RunResult result = RunSim(trace, FixedCost(), policy, settings);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.prefetched, Bytes(20));
}

// w leaves before the iteration begins. Its copy is no command of the iteration, so no command of
// the iteration can race with it.
TEST(RuntimeTest, WhatPlanMovesHasArrived) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("w", TensorKind::kParameter, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x"}, {"y"})
                          .Op("f2", Phase::kForward, {"y", "w"}, {"y"})
                          .Build();
  ScriptedPolicy policy;
  policy.plan = [](PolicyContext& context, const std::string&) {
    EXPECT_TRUE(context.Offload(Find(context, "w")));
    EXPECT_TRUE(context.Release(Find(context, "w")));
  };
  policy.after = [](PolicyContext& context, const std::string& op) {
    EXPECT_EQ(context.Offload(Find(context, "y")), op == "f1");
  };
  RunSettings settings;
  settings.options.iterations = 1;
  const RunResult result = RunSim(trace, FixedCost(), policy, settings);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0    10 compute f1\n"
            "   10    20 d2h y\n"
            "   10    20 h2d w\n"  // issued after f1 freed its memory
            "   20    30 compute f2\n");
}

TEST(RuntimeTest, NoCopyStartsWhileInputsArrive) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 30)
                          .Tensor("w", TensorKind::kParameter, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x", "w"}, {"y"})
                          .Build();
  ScriptedPolicy policy;
  int calls = 0;
  policy.on_failure = [&](PolicyContext& context, Bytes) {
    ++calls;
    EXPECT_FALSE(context.Offload(Find(context, "w")));
    return false;
  };
  RunSettings settings;
  settings.memory = Bytes(35);
  EXPECT_FALSE(RunSim(trace, FixedCost(), policy, settings).report.fits());
  EXPECT_EQ(calls, 1);
}

TEST(RuntimeTest, ParametersStayAndTravel) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("w", TensorKind::kParameter, 10)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x", "w"}, {"y"})
                          .Op("b1", Phase::kBackward, {"x", "y", "w"}, {"w"})
                          .Build();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "b1") return;
    EXPECT_TRUE(context.Offload(Find(context, "w")));
    EXPECT_TRUE(context.Release(Find(context, "w")));
  };
  const RunResult result = RunSim(trace, FixedCost(), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_TRUE(result.report.steady);
  // From the second iteration on, w starts on the host and is fetched.
  EXPECT_EQ(result.report.metrics.prefetched, Bytes(10));
  EXPECT_EQ(result.report.iterations, 3);
}

}  // namespace
}  // namespace spillway::testing
