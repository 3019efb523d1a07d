#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PolicyRegistry Builtin() {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  return registry;
}

std::string UsageErrorOf(const std::string& specification) {
  try {
    Builtin().Make(specification);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RegistryTest, SpecificationsAreParsedStrictly) {
  EXPECT_NE(Builtin().Make("vdnn-all:algo=memory,order=prefetch-first"), nullptr);
  EXPECT_THAT(UsageErrorOf("vdn-all"), HasSubstr("did you mean 'vdnn-all'"));
  EXPECT_THAT(UsageErrorOf(""), HasSubstr("unknown policy ''"));
  EXPECT_THAT(UsageErrorOf("vdnn-all:algo"), HasSubstr("'algo' is not key=value"));
  EXPECT_THAT(UsageErrorOf("vdnn-all:algo=fast"), HasSubstr("valid: memory, performance"));
  EXPECT_THAT(UsageErrorOf("vdnn-all:algos=memory"), HasSubstr("did you mean 'algo'"));
  EXPECT_THAT(UsageErrorOf("vdnn-all:algo=memory,algo=memory"), HasSubstr("given twice"));
  EXPECT_THAT(UsageErrorOf("vdnn-dyn:algo=memory"), HasSubstr("valid: adopt"));
}

TEST(RegistryTest, OnlyPoliciesThatSaySoDivideOps) {
  const Trace trace = LowerNetwork(BuildNetwork("alexnet"), {1, "torch", false});
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  const PolicyRegistry registry = Builtin();
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (!entry.traits.tried_by_default || entry.traits.for_recordings) continue;
    const Outcome outcome = testing::Simulate({Borrow(trace), device, Borrow(cost), Bytes::MiB(20)},
                                              *registry.Make(entry.name));
    EXPECT_EQ(outcome.trace->ops.size() > trace.ops.size(), entry.traits.divides_ops) << entry.name;
  }
}

TEST(RegistryTest, HelpIsWhatTheFactoryReads) {
  const auto parameters = Builtin().Parameters("vdnn-all");
  ASSERT_EQ(parameters.size(), 3u);
  EXPECT_EQ(parameters[0].name, "algo");
  EXPECT_EQ(parameters[0].type, "memory|performance|greedy");
  EXPECT_EQ(parameters[0].initial, "performance");
}

TEST(ParamsTest, TypedReadersCheckTheirValues) {
  Params params("p", {{"n", "7"}, {"flag", "true"}, {"size", "2KiB"}});
  EXPECT_EQ(params.Integer("n", 1, 0, 10, "a number"), 7);
  EXPECT_EQ(params.Integer("m", 3, 0, 10, "another"), 3);
  EXPECT_TRUE(params.Flag("flag", false, "a switch"));
  EXPECT_EQ(params.Size("size", Bytes(0), "a size"), Bytes::KiB(2));
  EXPECT_NO_THROW(params.Finish());
  for (const char* bad : {"11", "-1", "x", "", "1.5"}) {
    Params wrong("p", {{"n", bad}});
    EXPECT_THROW(wrong.Integer("n", 1, 0, 10, ""), UsageError) << bad;
  }
  Params sizes("p", {{"none", "unlimited"}});
  EXPECT_EQ(sizes.Size("none", Bytes::Unlimited(), ""), Bytes::Unlimited());
  EXPECT_EQ(sizes.Size("page", Bytes::MiB(2), ""), Bytes::MiB(2));
  EXPECT_EQ(sizes.Size("odd", Bytes(1536), ""), Bytes(1536));
  EXPECT_EQ(sizes.declared()[0].initial, "unlimited");
  EXPECT_EQ(sizes.declared()[1].initial, "2MiB");
  EXPECT_EQ(sizes.declared()[2].initial, "1536B");
  Params wrong_size("p", {{"size", "10 gigs"}});
  EXPECT_THROW(wrong_size.Size("size", Bytes(0), ""), UsageError);
}

// Every op takes 10 ns, every copy 10 ns. x, y1 and y2 leave after f1, f2 and f3. The fence of each
// step waits for the copy of that step. It costs no time, because the copy starts as soon as its
// storage is written and ends with the op that reads it. In backward, b3 prefetches y1 and b2
// prefetches x; y2 is fetched on demand for b3.
//
//   d2h      |x |y1|y2|
//   compute  |f1|f2|f3|  |b3|b2|b1|
//   h2d               |y2|y1|x |
TEST(VdnnTest, ConvOnAChain) {
  const Trace trace = testing::ChainTrace();
  const auto policy = Builtin().Make("vdnn-conv");
  const testing::RunResult result = RunSim(trace, FixedCost(), *policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0    10 compute f1\n"
            "    0    10 d2h x\n"
            "   10    20 compute f2\n"
            "   10    20 d2h y1\n"
            "   20    30 compute f3\n"
            "   20    30 d2h y2\n"
            "   30    40 h2d y2\n"
            "   40    50 h2d y1\n"
            "   40    50 compute b3\n"
            "   50    60 h2d x\n"
            "   50    60 compute b2\n"
            "   60    70 compute b1\n");
  EXPECT_EQ(testing::DecisionText(trace, result.report),
            "f1 offload x\nf1 release x\nf1 fence\n"
            "f2 offload y1\nf2 release y1\nf2 fence\n"
            "f3 offload y2\nf3 release y2\nf3 fence\n"
            "b3 fetch y2\nb3 prefetch y1\nb3 fence\n"
            "b2 prefetch x\nb2 fence\n");
}

TEST(VdnnTest, DynOffloadsNothingWhereItFits) {
  const Trace trace = testing::ChainTrace();
  const testing::RunResult result = RunSim(trace, FixedCost(), *Builtin().Make("vdnn-dyn"));
  EXPECT_EQ(result.report.metrics.offloaded, Bytes(0));
}

TEST(VdnnTest, DynOffloadsWhereItMust) {
  const Trace trace = testing::ChainTrace();
  testing::RunSettings settings;
  settings.memory = Bytes(40);  // in core needs 50
  const testing::RunResult result =
      RunSim(trace, FixedCost(), *Builtin().Make("vdnn-dyn"), settings);
  ASSERT_TRUE(result.report.fits());
  EXPECT_GT(result.report.metrics.offloaded, Bytes(0));
}

// For any memory, `adopt=fastest` is as fast as the fastest of its passes. The first pass that fits
// is slower where (all, performance) copies more than the small kernel of (conv, greedy) costs.
TEST(VdnnTest, DynAdoptsTheFastestOfItsPasses) {
  Trace trace = testing::ChainTrace();
  trace.layers[1].type = OpType::kMaxPool2d;
  for (const size_t op : {1, 4}) trace.ops[op].type = OpType::kMaxPool2d;
  FixedCost cost;
  cost.Set("f3", {{"fast", Duration::Nanoseconds(2), Bytes(30)},
                  {"small", Duration::Nanoseconds(4), Bytes(0)}});
  for (const char* op : {"f2", "b2"}) cost.Set(op, {{"pool", Duration::Nanoseconds(1), Bytes(0)}});
  int faster_than_first = 0;
  for (int memory = 30; memory <= 70; ++memory) {
    testing::RunSettings settings;
    settings.memory = Bytes(memory);
    const auto play = [&](std::string_view policy) {
      return RunSim(trace, cost, *Builtin().Make(policy), settings).report;
    };
    const Report fastest = play("vdnn-dyn:adopt=fastest");
    const Report first = play("vdnn-dyn");
    EXPECT_EQ(fastest.fits(), first.fits()) << memory;
    if (!fastest.fits()) continue;
    EXPECT_LE(fastest.metrics.iteration, first.metrics.iteration) << memory;
    faster_than_first += fastest.metrics.iteration < first.metrics.iteration ? 1 : 0;
    for (const char* pass :
         {"liveness", "vdnn-conv", "vdnn-all", "vdnn-conv:algo=greedy", "vdnn-all:algo=greedy"}) {
      const Report one = play(pass);
      if (!one.fits()) continue;
      EXPECT_LE(fastest.metrics.iteration, one.metrics.iteration) << pass << " " << memory;
    }
  }
  EXPECT_GT(faster_than_first, 0);
}

// With the least memory, the greedy pass chooses the fast kernel where there is room and the small
// kernel where there is none.
TEST(VdnnTest, DynDowngradesGreedily) {
  FixedCost cost;
  for (const char* op : {"f1", "b3"}) {
    cost.Set(op, {{"fast", Duration::Nanoseconds(2), Bytes(12)},
                  {"small", Duration::Nanoseconds(30), Bytes(0)}});
  }
  const Trace trace = testing::ChainTrace();
  testing::RunSettings settings;
  settings.memory = Bytes(40);
  const auto result = RunSim(trace, cost, *Builtin().Make("vdnn-dyn"), settings);
  ASSERT_TRUE(result.report.fits());
  std::map<OpId, uint32_t> chosen;
  for (const Decision& decision : result.report.decisions) {
    if (decision.verb == Verb::kRun) chosen[decision.op] = decision.run.kernel;
  }
  EXPECT_EQ(chosen[OpId{0}], 0u);
  EXPECT_EQ(chosen[OpId{3}], 1u);
}

// Gradients of a chain need two blocks, each as large as the largest gradient.
TEST(NetworkWideTest, ChainsNeedTwoGradientBlocks) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1);
  for (int i = 1; i <= 4; ++i) {
    builder.Tensor("y" + std::to_string(i), TensorKind::kActivation, 10 * i);
    builder.Tensor("d" + std::to_string(i), TensorKind::kGradient, 10 * i);
  }
  builder.Op("f1", Phase::kForward, {"x"}, {"y1"})
      .Op("f2", Phase::kForward, {"y1"}, {"y2"})
      .Op("f3", Phase::kForward, {"y2"}, {"y3"})
      .Op("f4", Phase::kForward, {"y3"}, {"y4"})
      .Op("b4", Phase::kBackward, {"y4"}, {"d4"})
      .Op("b3", Phase::kBackward, {"d4", "y3"}, {"d3"})
      .Op("b2", Phase::kBackward, {"d3", "y2"}, {"d2"})
      .Op("b1", Phase::kBackward, {"d2", "y1"}, {"d1"});
  const Trace trace = builder.Build();
  const auto result = RunSim(trace, FixedCost(), *Builtin().Make("network-wide"));
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.report.metrics.peak_requested, Bytes(1 + 100 + 2 * 40));
  EXPECT_EQ(result.report.metrics.average_requested, result.report.metrics.peak_requested);
}

// w is offloaded after f1 and prefetched for f4, although the policy has already examined all ops.
TEST(MmcnnTest, WhatHasGoneOutsideIsPrefetchedAgain) {
  const Trace trace = testing::TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("w", TensorKind::kParameter, 10)
                          .Tensor("y1", TensorKind::kActivation, 10)
                          .Tensor("y2", TensorKind::kActivation, 10)
                          .Tensor("y3", TensorKind::kActivation, 10)
                          .Tensor("y4", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x", "w"}, {"y1"})
                          .Op("f2", Phase::kForward, {"y1"}, {"y2"})
                          .Op("f3", Phase::kForward, {"y2"}, {"y3"})
                          .Op("f4", Phase::kForward, {"y3", "w"}, {"y4"})
                          .Build();
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  const Outcome outcome = testing::Simulate({Borrow(trace), device, Borrow(cost), Bytes::MiB(1)},
                                            *Builtin().Make("inference-vdnn"));
  std::vector<std::pair<OpId, Verb>> of_w;
  for (const Decision& decision : outcome.report.decisions) {
    if (decision.tensor == TensorId{1}) of_w.emplace_back(decision.op, decision.verb);
  }
  EXPECT_THAT(of_w, Contains(std::pair(OpId{1}, Verb::kPrefetch)));
}

}  // namespace
}  // namespace spillway::testing
