// Tests of vDNN++ on chains small enough to draw.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The chain x -> y1 -> y2 -> y3 -> y4 of forward ops f1..f4 and backward ops b4..b1, each a
// convolution; every tensor has 10 bytes and takes 10 ns to copy.
Trace ConvChain() {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10);
  for (int i = 1; i <= 4; ++i) {
    builder.Tensor("y" + std::to_string(i), TensorKind::kActivation, 10);
    builder.Tensor("d" + std::to_string(i), TensorKind::kGradient, 10);
  }
  const auto conv = OpType::kConv2d;
  builder.Op("f1", Phase::kForward, {"x"}, {"y1"}, conv)
      .Op("f2", Phase::kForward, {"y1"}, {"y2"}, conv)
      .Op("f3", Phase::kForward, {"y2"}, {"y3"}, conv)
      .Op("f4", Phase::kForward, {"y3"}, {"y4"}, conv)
      .Op("b4", Phase::kBackward, {"y4", "y3"}, {"d4"}, conv, "f4")
      .Op("b3", Phase::kBackward, {"d4", "y2"}, {"d3"}, conv, "f3")
      .Op("b2", Phase::kBackward, {"d3", "y1"}, {"d2"}, conv, "f2")
      .Op("b1", Phase::kBackward, {"d2", "x"}, {"d1"}, conv, "f1");
  return builder.Build();
}

// f1, f3, b1 and b3 take 2 ns, the other ops 18 ns.
testing::FixedCost AlternatingCost() {
  testing::FixedCost cost(Duration::Nanoseconds(18));
  for (const char* op : {"f1", "f3", "b3", "b1"}) {
    cost.Set(op, {{"default", Duration::Nanoseconds(2), Bytes(0)}});
  }
  return cost;
}

testing::RunResult Play(const std::string& policy, Bytes memory = Bytes::Unlimited(),
                        const testing::FixedCost& cost = AlternatingCost()) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Trace trace = ConvChain();
  testing::RunSettings settings;
  settings.memory = memory;
  auto result = testing::RunSim(trace, cost, *registry.Make(policy), settings);
  EXPECT_THAT(result.violations, IsEmpty()) << policy;
  return result;
}

std::string Decisions(const testing::RunResult& result) {
  return testing::DecisionText(ConvChain(), result.report);
}

std::string Timeline(const testing::RunResult& result) {
  return testing::TimelineText(ConvChain(), result.report);
}

// vDNN, section III-A: each fast layer waits for its offload (|..|); long layers hide their
// offloads.
//
//   compute  |f1|..f2          |f3|..f4          |
//   d2h      |x   |y1  |       |y2  |y3  |
//
// vDNN++, Fig. 8: the offload of a fast layer's X continues during the long layer that follows.
//
//   compute  |f1|f2         |f3|f4          |
//   d2h      |x   |y1  |     |y2  |y3  |
TEST(VdnnppTest, OffloadsOfFastLayersAreCoveredByTheNext) {
  const auto vdnn = Play("vdnn-conv");
  EXPECT_THAT(Timeline(vdnn), HasSubstr("   10    28 compute f2\n"));
  const auto pp = Play("vdnnpp:offload=conv,release=lazy");
  EXPECT_THAT(Timeline(pp), HasSubstr("    0     2 compute f1\n"
                                      "    0    10 d2h x\n"
                                      "    2    20 compute f2\n"
                                      "   10    20 d2h y1\n"
                                      "   20    22 compute f3\n"));
  EXPECT_THAT(Decisions(pp), Not(HasSubstr("fence")));
  EXPECT_EQ(pp.report.metrics.stalls.memory, Duration());
  EXPECT_LT(pp.report.metrics.iteration, vdnn.report.metrics.iteration);
}

TEST(VdnnppTest, LazyReleaseWaitsForTheEndOfForward) {
  EXPECT_THAT(Decisions(Play("vdnnpp:offload=conv,release=lazy")),
              HasSubstr("f4 offload y3\nf4 release x\nf4 release y1\nf4 release y2\n"
                        "f4 release y3\n"));
  EXPECT_THAT(Decisions(Play("vdnnpp:offload=conv,release=eager")),
              HasSubstr("f1 offload x\nf1 release x\nf2 offload y1\nf2 release y1\n"));
}

// The copies of x and y1 have ended when f3 begins. The copy of y2 has not ended when f4 begins (22
// of 30 ns).
TEST(VdnnppTest, LandedCopiesAreGivenBack) {
  EXPECT_THAT(Decisions(Play("vdnnpp:offload=conv,release=landed")),
              HasSubstr("f1 offload x\nf2 offload y1\nf3 release x\nf3 release y1\n"
                        "f3 offload y2\nf4 offload y3\nf4 release y2\nf4 release y3\n"));
}

// The memory holds three of the four tensors that forward would keep. f3 takes the block of x,
// whose copy ended long ago. vDNN would give it the block of y1, which is still being copied.
TEST(VdnnppTest, LazyReleaseGivesBackTheOldestFirst) {
  const auto lazy = Play("vdnnpp:offload=conv,release=lazy", Bytes(30));
  ASSERT_TRUE(lazy.report.fits());
  EXPECT_THAT(Decisions(lazy), HasSubstr("f1 offload x\nf2 offload y1\nf3 release x\n"
                                         "f3 offload y2\nf4 release y1\n"));
}

TEST(VdnnppTest, AlternateConvolutionsBeginWithTheFirst) {
  for (const char* policy : {"vdnnpp:offload=aconv,release=eager", "vdnn-aconv"}) {
    const std::string decisions = Decisions(Play(policy));
    EXPECT_THAT(decisions, HasSubstr("f1 offload x\n")) << policy;
    EXPECT_THAT(decisions, HasSubstr("f3 offload y2\n")) << policy;
    EXPECT_THAT(decisions, Not(HasSubstr("offload y1\n"))) << policy;
    EXPECT_THAT(decisions, Not(HasSubstr("offload y3\n"))) << policy;
    EXPECT_THAT(decisions, HasSubstr("b4 prefetch y2\n")) << policy;
    EXPECT_THAT(decisions, HasSubstr("b2 prefetch x\n")) << policy;
  }
}

// `auto` is not slower than any release, and it fits if one release fits.
TEST(VdnnppTest, AutoTakesTheBestRelease) {
  for (const int memory : {20, 30, 40, 50, 60, 100}) {
    for (const std::string offload : {"conv", "aconv", "all"}) {
      const std::string policy = "vdnnpp:offload=" + offload;
      const Report both = Play(policy, Bytes(memory)).report;
      const Report lazy = Play(policy + ",release=lazy", Bytes(memory)).report;
      const Report landed = Play(policy + ",release=landed", Bytes(memory)).report;
      const Report eager = Play(policy + ",release=eager", Bytes(memory)).report;
      ASSERT_EQ(both.fits(), lazy.fits() || landed.fits() || eager.fits()) << policy << memory;
      for (const Report& one : {lazy, landed, eager}) {
        if (both.fits() && one.fits()) {
          EXPECT_LE(both.metrics.iteration, one.metrics.iteration) << policy << " " << memory;
        }
      }
    }
  }
}

TEST(VdnnppTest, DynIsAsFastAsTheBestOfItsModes) {
  for (const int memory : {20, 30, 40, 50, 60, 100}) {
    const Report dyn = Play("vdnnpp", Bytes(memory)).report;
    for (const std::string offload : {"conv", "aconv", "all"}) {
      const Report mode = Play("vdnnpp:offload=" + offload, Bytes(memory)).report;
      if (!mode.fits()) continue;
      ASSERT_TRUE(dyn.fits()) << offload << " " << memory;
      EXPECT_LE(dyn.metrics.iteration, mode.metrics.iteration) << offload << " " << memory;
    }
  }
}

TEST(VdnnppTest, DynMovesNothingWhereItFits) {
  EXPECT_EQ(Play("vdnnpp").report.metrics.offloaded, Bytes(0));
  const Report tight = Play("vdnnpp", Bytes(50)).report;
  ASSERT_TRUE(tight.fits());
  EXPECT_GT(tight.metrics.offloaded, Bytes(0));
}

// In an arena of 100 bytes, a first block at the high end begins at 90.
TEST(VdnnppTest, HintsSendOneKindToTheHighEnd) {
  const Trace trace = ConvChain();
  const auto first_block = [&](const std::string& policy, const std::string& tensor) {
    const auto result = Play(policy, Bytes(100));
    for (const Placement& placement : result.report.placements) {
      if (trace.tensor(placement.tensor).name == tensor) return placement.block.offset.count();
    }
    return int64_t{-1};
  };
  const std::string policy = "vdnnpp:offload=aconv,release=lazy,hint=";
  EXPECT_EQ(first_block(policy + "none", "x"), 0);
  EXPECT_EQ(first_block(policy + "none", "y1"), 10);
  EXPECT_EQ(first_block(policy + "kept", "x"), 0);
  EXPECT_EQ(first_block(policy + "kept", "y1"), 90);
  EXPECT_EQ(first_block(policy + "offloaded", "x"), 90);
  EXPECT_EQ(first_block(policy + "offloaded", "y1"), 0);
}

// Section IV-A: "the allowed peak memory of vDNN++ is maintained at the same level as consumed by
// vDNN".
TEST(VdnnppTest, EachModeNamesTheVdnnWhoseMemoryItGets) {
  PolicyLibrary library;
  EXPECT_EQ(library.MemoryPolicy("vdnnpp"), "");
  EXPECT_EQ(library.MemoryPolicy("vdnnpp:offload=all"), "vdnn-all:algo=performance");
  EXPECT_EQ(library.MemoryPolicy("vdnnpp:offload=aconv,algo=memory,release=lazy"),
            "vdnn-aconv:algo=memory");
  EXPECT_EQ(library.MemoryPolicy("vdnn-all"), "");
  EXPECT_EQ(library.MemoryPolicy("./mine.so:vdnnpp:offload=all"), "");
  EXPECT_THROW(library.MemoryPolicy("vdnnp"), UsageError);
}

// vDNN fits in the needed memory, and its peak with unlimited memory is not larger.
TEST(VdnnppTest, NeededMemoryIsEnough) {
  const Trace trace = LowerNetwork(testing::ForkJoin(), {4, "vdnnpp", true});
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  Draft run{Borrow(trace), device, Borrow(cost), Bytes::Unlimited(), "best-fit", "vdnn-all"};
  const Bytes peak = Predict(run).report.metrics.peak_allocated;
  const auto needed = NeededMemory(run);
  ASSERT_TRUE(needed);
  EXPECT_GE(*needed, peak);
  run.memory = *needed;
  EXPECT_TRUE(Predict(run).report.fits());
  // The needed memory is limited to the memory of the device.
  Device small = device;
  small.memory = *needed - device.alignment;
  EXPECT_EQ(MemoryBudget("vdnn-all").In({Borrow(trace), small, Borrow(cost), Bytes::Unlimited()}),
            small.memory);
  small.memory = *needed + Bytes::MiB(1);
  EXPECT_EQ(MemoryBudget("vdnn-all").In({Borrow(trace), small, Borrow(cost), Bytes::Unlimited()}),
            *needed);
  // Without host memory the inputs cannot be fetched.
  small.host_memory = Bytes(0);
  Draft charged{Borrow(trace), small, Borrow(cost), Bytes::Unlimited(), "best-fit", "vdnn-all"};
  charged.options.charge_input = true;
  EXPECT_EQ(NeededMemory(charged), std::nullopt);
}

}  // namespace
}  // namespace spillway::testing
