#include "experiments/changes/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fixtures.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

Trace Recorded(Trace trace) {
  trace.recording.emplace();
  for (Op& op : trace.ops) {
    op.recorded = {Duration::Microseconds(10), Duration(), Duration::Microseconds(1), Bytes()};
    op.slots[0].signature = "aten::" + op.name.substr(0, op.name.find('.'));
  }
  return trace;
}

// autograd saves c, the copy of the parameter w in bf16, both results of `drop`, and e.
//
//   forward   _to_copy: w -> c       drop: x, c -> y, m      more: y -> e       end: e -> l
//   backward  end.bwd: e -> g        drop.bwd: g, m, y, c -> dw
//   update    step: dw, w -> w
Trace Step(DataType of_weight = DataType::kFloat32) {
  TraceBuilder builder;
  using enum TensorKind;
  builder.Tensor("x", kInput, 2 * kMiB).Tensor("w", kParameter, 4 * kMiB);
  for (const char* name : {"c", "y", "m", "e"}) builder.Tensor(name, kActivation, 2 * kMiB);
  builder.Tensor("l", kActivation, 4);
  builder.Tensor("g", kGradient, 2 * kMiB).Tensor("dw", kParameterGradient, 4 * kMiB);
  builder.Op("_to_copy.0", Phase::kForward, {"w"}, {"c"});
  builder.Op("drop.1", Phase::kForward, {"x", "c"}, {"y", "m"});
  builder.Op("more.2", Phase::kForward, {"y"}, {"e"});
  builder.Op("end.3", Phase::kForward, {"e"}, {"l"});
  builder.Op("end.bwd", Phase::kBackward, {"e"}, {"g"});
  builder.Op("drop.bwd", Phase::kBackward, {"g", "m", "y", "c"}, {"dw"});
  builder.Op("step", Phase::kUpdate, {"dw", "w"}, {"w"});
  Trace trace = Recorded(builder.Build());
  const auto id = [&](const char* name) { return builder.Id(name); };
  trace.saved = {{id("c"), 2, {5}},
                 {id("w"), 2, {5}},
                 {id("m"), 2, {5}},
                 {id("y"), 3, {5}},
                 {id("e"), 4, {4}}};
  trace.tensors[Index(id("w"))].dtype = of_weight;
  trace.tensors[Index(id("w"))].shape = {kMiB};
  trace.tensors[Index(id("c"))].dtype = DataType::kBfloat16;
  trace.tensors[Index(id("l"))].held_until = OpId{5};
  trace.Validate();
  return trace;
}

std::vector<std::string> Names(const Trace& trace, std::span<const TensorId> ids) {
  std::vector<std::string> names;
  for (const TensorId id : ids) names.push_back(trace.tensor(id).name);
  return names;
}

const Op& OpOf(const Trace& trace, const std::string& name) {
  return *std::ranges::find(trace.ops, name, &Op::name);
}

std::vector<std::string> OpsOf(const Trace& trace) {
  std::vector<std::string> names;
  for (const Op& op : trace.ops) names.push_back(op.name);
  return names;
}

TEST(PlannedStepTest, OneResultOfAnOpCanBeRecomputed) {
  const Trace hooked = WithHooks(Step());
  EXPECT_EQ(Names(hooked, OpOf(hooked, "drop.1").outputs), std::vector<std::string>{"y"});
  const Op& others = OpOf(hooked, "drop.1.others");
  EXPECT_EQ(Names(hooked, others.outputs), std::vector<std::string>{"m"});
  EXPECT_TRUE(OpOf(hooked, "drop.1").recomputable);
  EXPECT_FALSE(others.recomputable);
  EXPECT_EQ(others.recorded->time, Duration());
}

TEST(PlannedStepTest, AutocastKeepsItsCopiesUntilForwardEnds) {
  const Trace hooked = WithHooks(Step());
  const Op& end = OpOf(hooked, "autocast");
  EXPECT_EQ(Names(hooked, end.inputs), (std::vector<std::string>{"c", "l"}));
  EXPECT_FALSE(end.recomputable);
  // It stands behind forward.
  const auto ops = OpsOf(hooked);
  EXPECT_EQ(*std::next(std::ranges::find(ops, "end.3")), "autocast");
  const Trace no_copy = WithHooks(Step(DataType::kInt32));
  EXPECT_EQ(std::ranges::count(OpsOf(no_copy), "autocast"), 0);
}

TEST(PlannedStepTest, HooksStandWhereAutogradSavesAndReads) {
  const Trace hooked = WithHooks(Step());
  EXPECT_THAT(OpsOf(hooked), ElementsAre("_to_copy.0", "drop.1", "drop.1.others", "more.2", "end.3",
                                         "autocast", "end.bwd", "drop.bwd", "step"));
  EXPECT_THAT(hooked.hooks->places, ElementsAre(HookPlace{3, 3, 0}, HookPlace{4, 1, 0},
                                                HookPlace{6, 1, 1}, HookPlace{7, 0, 4}));
  // The parameter stays, whoever saves it.
  std::vector<TensorId> saved;
  for (const KeptForBackward& kept : hooked.saved) saved.push_back(kept.tensor);
  EXPECT_EQ(Names(hooked, saved), (std::vector<std::string>{"c", "m", "y", "e"}));
  EXPECT_EQ(hooked.saved[2], (KeptForBackward{saved[2], 4, {7}}));
}

TEST(PlannedStepTest, WhatBackwardReadsIsSavedIfNothingSaysWhatIs) {
  Trace step = Step();
  step.saved.clear();
  std::vector<TensorId> saved;
  const Trace hooked = WithHooks(step);
  for (const KeptForBackward& kept : hooked.saved) saved.push_back(kept.tensor);
  EXPECT_EQ(Names(hooked, saved), (std::vector<std::string>{"c", "y", "m", "e"}));
}

TEST(PlannedStepTest, WhatIsSmallStays) {
  Trace step = Step();
  const TensorId e = step.saved.back().tensor;
  EXPECT_TRUE(WithHooks(step).tensor(e).movable);
  step.tensors[Index(e)].size = Bytes(kMiB - 1);
  EXPECT_FALSE(WithHooks(step).tensor(e).movable);
}

// l is held until an op of backward, which reads it then; an op of forward would recompute it.
TEST(PlannedStepTest, OpsThatRunOnceReadWhatTheProgramHolds) {
  Trace step = WithHolds(WithHooks(Step()));
  EXPECT_EQ(Names(step, OpOf(step, "drop.bwd").inputs).back(), "l");
  step = WithHooks(Step());
  const auto x = static_cast<TensorId>(0);
  const auto more = std::ranges::find(step.ops, "more.2", &Op::name) - step.ops.begin();
  step.tensors[Index(x)].held_until = static_cast<OpId>(more);
  step = WithHolds(std::move(step));
  EXPECT_EQ(Names(step, OpOf(step, "more.2").inputs), std::vector<std::string>{"y"});
  EXPECT_EQ(Names(step, OpOf(step, "drop.1.others").inputs), std::vector<std::string>{"x"});
}

// Forward uses w0 to w7 of 64 MiB each and `large` of 512 MiB, and backward uses them the other way
// round, so that w7 and w6 are used again soon.
Trace Frozen() {
  TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, kMiB);
  std::vector<std::string> weights{"large"};
  builder.Tensor("large", TensorKind::kParameter, 512 * kMiB);
  for (int i = 0; i < 8; ++i) {
    weights.push_back("w" + std::to_string(i));
    builder.Tensor(weights.back(), TensorKind::kParameter, 64 * kMiB);
  }
  builder.Tensor("y", TensorKind::kActivation, kMiB);
  builder.Op("begin", Phase::kForward, {"x"}, {"y"});
  for (const std::string& weight : weights) {
    builder.Op(weight + ".fwd", Phase::kForward, {"y", weight}, {"y"});
  }
  std::ranges::reverse(weights);
  for (const std::string& weight : weights) {
    builder.Op(weight + ".bwd", Phase::kBackward, {"y", weight}, {"y"});
  }
  return Recorded(builder.Build());
}

TEST(PlannedStepTest, WeightsLeaveAtEqualDistancesThoseUsedAgainSoonAndLargeOnesLast) {
  const Trace trace = Frozen();
  const HostableWeights weights = WeightsIn(trace);
  ASSERT_EQ(weights.frozen.size(), 9);
  EXPECT_THAT(weights.trained, IsEmpty());
  const auto leaving = [&](int64_t mib) {
    return Names(trace, LeavingWeights(trace, weights, Bytes::MiB(mib)));
  };
  // Two windows are 256 MiB, as many as w4 to w7 have.
  EXPECT_THAT(leaving(0), IsEmpty());
  EXPECT_THAT(leaving(128), ElementsAre("w0", "w2"));
  EXPECT_THAT(leaving(384), ElementsAre("w0", "w1", "w2", "w3", "w4", "w6"));
  EXPECT_THAT(leaving(1024), ElementsAre("w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "large"));
}

TEST(PlannedStepTest, AnotherLaneOfTheProgramKeepsWeightsOnTheDevice) {
  Trace trace = Frozen();
  trace.ops.front().lane = 1;
  EXPECT_THAT(WeightsIn(trace).frozen, IsEmpty());
}

// w0 to w7 are outside, so that 64 MiB come ahead: one of them.
TEST(PlannedStepTest, WeightsComeOnALaneOfTheirOwnBeforeTheyAreUsed) {
  const Trace trace = WithHooks(Frozen());
  std::vector<TensorId> weights = WeightsIn(trace).frozen;
  std::erase_if(weights, [&](TensorId id) { return trace.tensor(id).name == "large"; });
  Device device = RoundDevice();
  device.h2d.bandwidth = {1'000'000'000};
  const Trace hosted = WithWeightsOnHost(trace, device, weights);
  const Op& fetch = OpOf(hosted, "w1.copy.fetch");
  EXPECT_EQ(fetch.lane, 1);
  EXPECT_EQ(fetch.recorded->time, TransferTime(Bytes::MiB(64), {950'000'000}));
  // It starts behind the op that used w0, beside the op before the one that needs it.
  const std::vector<std::string> ops = OpsOf(hosted);
  const auto at = std::ranges::find(ops, "w1.copy.fetch");
  EXPECT_EQ(*std::prev(at), "w0.fwd.read");
  EXPECT_EQ(*std::next(at), "w1.fwd");
  EXPECT_EQ(hosted.op(fetch.after[0]).name, "w0.fwd.read");
  // w7 stays from forward to backward, and each other one comes twice.
  EXPECT_EQ(std::ranges::count_if(hosted.ops, [](const Op& op) { return op.lane == 1; }), 15);
  // What runs again copies the weight again.
  const RecordedCost& cost = *OpOf(hosted, "w1.fwd").recorded;
  EXPECT_EQ(cost.again->time, cost.time + fetch.recorded->time);
  EXPECT_EQ(cost.again->workspace, Bytes::MiB(64));
  EXPECT_EQ(Names(hosted, OpOf(hosted, "w1.bwd").inputs).size(), 2);
  for (const TensorId weight : weights) EXPECT_EQ(hosted.tensor(weight).size, Bytes());
}

// w0 to w3 of 64 MiB each are used in forward and the other way round in backward, each with an
// update behind it, which needs state that can be on the host, but for w3, whose state stays.
Trace Trained() {
  TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, kMiB).Tensor("y", TensorKind::kActivation, kMiB);
  builder.Op("begin", Phase::kForward, {"x"}, {"y"});
  for (int i = 0; i < 4; ++i) {
    const std::string n = std::to_string(i);
    builder.Tensor("w" + n, TensorKind::kParameter, 64 * kMiB);
    builder.Tensor("s" + n, TensorKind::kOptimizerState, 128 * kMiB);
    builder.Op("fwd" + n, Phase::kForward, {"y", "w" + n}, {"y"});
  }
  for (int i = 3; i >= 0; --i) {
    const std::string n = std::to_string(i);
    builder.Op("bwd" + n, Phase::kBackward, {"y", "w" + n}, {"y"});
    builder.Op("update" + n, Phase::kUpdate, {"w" + n, "s" + n}, {"w" + n, "s" + n});
  }
  Trace trace = Recorded(builder.Build());
  trace.tensors[Index(builder.Id("s3"))].movable = false;
  return trace;
}

TEST(PlannedStepTest, TrainedWeightsLeaveBehindTheirUpdates) {
  const Trace trace = WithHooks(Trained());
  const HostableWeights weights = WeightsIn(trace);
  EXPECT_THAT(weights.frozen, IsEmpty());
  EXPECT_THAT(Names(trace, weights.trained), ElementsAre("w0", "w1", "w2"));
  Device device = RoundDevice();
  device.h2d.bandwidth = device.d2h.bandwidth = {1'000'000'000};
  const Trace hosted = WithWeightsOnHost(trace, device, weights.trained);
  // One comes ahead, and stays for its update: w2 from forward on.
  EXPECT_EQ(std::ranges::count_if(hosted.ops, [](const Op& op) { return op.lane == 1; }), 5);
  const std::vector<std::string> ops = OpsOf(hosted);
  const auto at = std::ranges::find(ops, "update2");
  EXPECT_EQ(*std::next(at), "w2.copy.leave");
  const Op& leave = OpOf(hosted, "w2.copy.leave");
  EXPECT_EQ(leave.lane, 2);
  EXPECT_EQ(hosted.op(leave.after[0]).name, "update2");
  EXPECT_EQ(OpOf(hosted, "update2").outputs[0], leave.inputs[0]);
  // The second copy in backward has half of the link, and the update waits for the first to leave.
  const Duration alone = TransferTime(Bytes::MiB(64), {950'000'000});
  EXPECT_EQ(leave.recorded->time, alone);
  EXPECT_EQ(OpOf(hosted, "w1.copy.fetch").recorded->time, alone);
  const auto late = std::ranges::find_if(hosted.ops.rbegin(), hosted.ops.rend(),
                                         [](const Op& op) { return op.lane == 1; });
  EXPECT_EQ(late->recorded->time, TransferTime(Bytes::MiB(128), {950'000'000}));
  const Op& last = OpOf(hosted, "update0");
  ASSERT_EQ(last.after.size(), 1);
  EXPECT_EQ(hosted.op(last.after[0]).name, "w2.copy.leave");
  // What is recomputed takes no copy of its own.
  const RecordedCost& cost = *OpOf(hosted, "fwd1").recorded;
  EXPECT_EQ(cost.again->time, cost.time);
}

TEST(PlannedStepTest, FrozenWeightsLeaveBeforeTrainedOnes) {
  Trace trace = Trained();
  std::erase_if(trace.ops, [](const Op& op) { return op.name == "update0"; });
  const HostableWeights weights = WeightsIn(trace);
  EXPECT_THAT(Names(trace, LeavingWeights(trace, weights, Bytes::MiB(64))), ElementsAre("w0"));
  EXPECT_THAT(Names(trace, LeavingWeights(trace, weights, Bytes::MiB(256))),
              ElementsAre("w0", "w1", "w2"));
}

}  // namespace
}  // namespace spillway::testing
