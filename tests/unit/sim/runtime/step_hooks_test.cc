// Drawn tests of steps whose program carries decisions out in the hooks of autograd. An op takes
// 5 ns and a copy 10 ns; a column of three characters is 5 ns.

#include "sim/runtime/step_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

constexpr Duration Nanoseconds(int64_t n) { return Duration::Nanoseconds(n); }

RunResult RunHooked(const Trace& trace, ScriptedPolicy& policy, const RunSettings& settings = {}) {
  RunResult result = RunSim(trace, FixedCost(Nanoseconds(5)), policy, settings);
  EXPECT_THAT(result.violations, IsEmpty());
  return result;
}

// The copy back starts when the ops that were launched before it have run, although the copy to the
// host has landed before.
//
//   kernels    |f1|f2|  |f3|b3|  |b2|b1|
//   to host       | y1  |
//   to device              | y1  |
TEST(StepHooksTest, CopiesWaitForOpsAndOpsForTheCopyOfWhatLeaves) {
  const Trace trace = HookedChain();
  ScriptedPolicy policy;
  policy.before = [](PolicyContext& context, const std::string& op) {
    const TensorId y1 = Find(context, "y1");
    if (op == "f2") {
      EXPECT_FALSE(context.Offload(y1));  // f2 uses it
    }
    if (op == "f3") {
      EXPECT_TRUE(context.Release(y1));
    }
    if (op == "b3") {
      EXPECT_TRUE(context.Prefetch(y1));
    }
  };
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") {
      EXPECT_TRUE(context.Offload(Find(context, "y1")));
    }
  };
  EXPECT_EQ(TimelineText(trace, RunHooked(trace, policy).report),
            "    0     5 compute f1\n"
            "    5    15 d2h y1\n"
            "    5    10 compute f2\n"
            "   15    20 compute f3\n"
            "   20    30 h2d y1\n"
            "   20    25 compute b3\n"
            "   30    35 compute b2\n"
            "   35    40 compute b1\n");
}

TEST(StepHooksTest, WhatTheProgramOrBackwardRefersToStays) {
  const Trace trace = HookedChain();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    const TensorId y1 = Find(context, "y1");
    if (op == "f1") {
      EXPECT_TRUE(context.Pinned(y1));
      EXPECT_FALSE(context.Evict(y1));  // f2 has yet to use it
    }
    if (op == "f2") {
      EXPECT_FALSE(context.Pinned(y1));
      EXPECT_TRUE(context.Evict(y1));
    }
  };
  RunHooked(trace, policy);
}

// The last hook runs before b3, so nothing could wait for a copy of y2 while f3 or b3 is prepared.
TEST(StepHooksTest, MemoryIsNotFreedWhereNoHookRuns) {
  Trace trace = HookedChain();
  trace.hooks->places = {{1, 2, 0}, {4, 1, 3}};
  bool asked = false;
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") context.Offload(Find(context, "y1"));
  };
  policy.on_failure = [&](PolicyContext& context, Bytes) {
    asked = true;
    EXPECT_FALSE(context.Release(Find(context, "y1")));
    return false;
  };
  RunHooked(trace, policy, {.memory = Bytes(39)});
  EXPECT_TRUE(asked);
  trace.hooks->places = {{1, 1, 0}, {2, 1, 0}, {4, 1, 3}};
  policy.on_failure = [](PolicyContext& context, Bytes) {
    return context.Release(Find(context, "y1"));
  };
  EXPECT_TRUE(RunHooked(trace, policy, {.memory = Bytes(39)}).report.placements.size() > 0);
}

TEST(StepHooksTest, TheHostIsBusyInHooksAndWithMoves) {
  Trace trace = HookedChain();
  trace.hooks->pack = Nanoseconds(3);
  trace.hooks->unpack = Nanoseconds(2);
  trace.hooks->offload = Nanoseconds(100);
  ScriptedPolicy policy;
  const auto issued = [&](size_t entry) {
    return RunHooked(trace, policy).report.timeline.at(entry).interval.issued;
  };
  EXPECT_EQ(issued(1), Nanoseconds(3));              // f2: one tensor is saved
  EXPECT_EQ(issued(3), Nanoseconds(3 * 3 + 2 * 2));  // b3
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") context.Offload(Find(context, "y1"));
  };
  EXPECT_EQ(issued(1), Nanoseconds(100));  // the copy of y1
}

TEST(StepHooksTest, RunningAgainCanBeOtherWork) {
  Trace trace = HookedChain();
  trace.ops[0].recorded->again = {Nanoseconds(7), Nanoseconds(2), Bytes(4)};
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f2") context.Evict(Find(context, "y1"));
  };
  const Report report = RunHooked(trace, policy).report;
  EXPECT_EQ(report.metrics.recompute, Nanoseconds(7));
  for (const TimelineEntry& entry : report.timeline) {
    EXPECT_EQ(entry.size, entry.recompute ? Bytes(4) : Bytes(0));
  }
}

TEST(StepHooksTest, AMoveThatTheProgramCannotMakeIsRefused) {
  Trace trace = HookedChain();
  trace.hooks->offload.reset();
  trace.hooks->evict.reset();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op != "f2") return;
    EXPECT_FALSE(context.Offload(Find(context, "y1")));
    EXPECT_FALSE(context.Evict(Find(context, "y1")));
  };
  RunHooked(trace, policy);
}

// A kernel runs at half its speed beside a copy.
//
//   kernels    |f1|f2 (10 ns)|f3|b3|b2|b1|
//   to host       | y1  |
TEST(StepHooksTest, OpsTakeLongerBesideCopies) {
  const Trace trace = HookedChain();
  ScriptedPolicy policy;
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") context.Offload(Find(context, "y1"));
  };
  RunSettings settings;
  settings.device.beside_copy.fill(0.5);
  EXPECT_EQ(RunHooked(trace, policy, settings).report.metrics.iteration, Nanoseconds(35));
}

}  // namespace
}  // namespace spillway::testing
