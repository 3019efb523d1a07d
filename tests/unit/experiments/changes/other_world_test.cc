#include "experiments/changes/other_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "experiments/changes/shards.h"
#include "tests/testing/fixtures.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

// The second process of 4 that trains shards of a weight [12, 8] and of a bias [8], each with one
// moment:
//
//   forward   cast:    w [3, 8], b [2] -> s [26]        the shards side by side
//             in:      s [0:24], s [24:26] -> g [104]   copied into this process's part of g
//             gather:  g [26:52] -> g
//             out:     g -> o0 [96], o1 [8]             the parameters
//             use:     o0, x -> y [5, 8]
//   backward  grad:    y, x -> d [104]
//             scatter: d -> r [26]
//   update    step:    w, b, mw, mb, r [0:24], r [24:26] -> w, b, mw, mb
Trace Step(const std::string& kind = "all_gather", Phase phase = Phase::kForward) {
  testing::TraceBuilder builder;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  const auto tensor = [&](const std::string& name, TensorKind kind_of, std::vector<int64_t> shape,
                          const std::string& alias_of = "") {
    int64_t bytes = 4;
    for (const int64_t extent : shape) bytes *= extent;
    builder.Tensor(name, kind_of, bytes, alias_of);
    shapes.emplace_back(name, std::move(shape));
  };
  using enum TensorKind;
  tensor("w", kParameter, {3, 8});
  tensor("b", kParameter, {2});
  tensor("mw", kOptimizerState, {3, 8});
  tensor("mb", kOptimizerState, {2});
  tensor("x", kInput, {5, 8});
  tensor("s", kActivation, {26});
  tensor("s0", kActivation, {24}, "s");
  tensor("s1", kActivation, {2}, "s");
  tensor("g", kActivation, {104});
  tensor("g0", kActivation, {26}, "g");
  tensor("o0", kActivation, {96});
  tensor("o1", kActivation, {8});
  tensor("y", kActivation, {5, 8});
  tensor("d", kGradient, {104});
  tensor("r", kParameterGradient, {26});
  tensor("r0", kParameterGradient, {3, 8}, "r");
  tensor("r1", kParameterGradient, {2}, "r");
  builder.Op("cast", Phase::kForward, {"w", "b"}, {"s"});
  builder.Op("in", Phase::kForward, {"s0", "s1"}, {"g"});
  builder.Op("gather", Phase::kForward, {"g", "g0"}, {"g"});
  builder.Op("out", Phase::kForward, {"g"}, {"o0", "o1"});
  builder.Op("use", Phase::kForward, {"o0", "x"}, {"y"});
  builder.Op("other", phase, {"y"}, {"y"});
  builder.Op("grad", Phase::kBackward, {"y", "x"}, {"d"});
  builder.Op("scatter", Phase::kBackward, {"d"}, {"r"});
  builder.Op("step", Phase::kUpdate, {"w", "b", "mw", "mb", "r0", "r1"}, {"w", "b", "mw", "mb"});
  Trace trace = builder.Build();
  for (auto& [name, shape] : shapes) trace.tensors[Index(builder.Id(name))].shape = shape;
  for (const char* name : {"s1", "r1"}) trace.tensors[Index(builder.Id(name))].offset = Bytes(96);
  trace.tensors[Index(builder.Id("g0"))].offset = Bytes(104);
  trace.tensors[Index(builder.Id("w"))].request = 0;
  trace.recording = {"PyTorch", "GPU", Duration::Milliseconds(1), Duration(), Bytes(9), Bytes(9)};
  trace.recording->requests = {{Bytes(96)}, {Bytes(104), 2}, {Bytes(160), 3}};
  for (Op& op : trace.ops) {
    op.recorded = {Duration::Microseconds(8), Duration(), Duration(), Bytes()};
    op.slots[0].traffic = Bytes(1000);
    if (op.name == "in") op.attributes = {{"elements", 26}, {"row", 8}};
    if (op.name == "out") op.attributes = {{"elements", 104}, {"row", 2}};
    const bool other = op.name == "other";
    if (other && kind.empty()) continue;
    if (op.name != "gather" && op.name != "scatter" && !other) continue;
    op.slots[0].signature = (other                 ? kind
                             : op.name == "gather" ? "all_gather"
                                                   : "reduce_scatter") +
                            " 26";
    op.attributes = {{"bytes", other ? 160.0 : 416.0}, {"ranks", other ? 2.0 : 4.0}, {"stride", 1}};
  }
  trace.Validate();
  return trace;
}

const Tensor& Of(const Trace& trace, const std::string& name) {
  return *std::ranges::find(trace.tensors, name, &Tensor::name);
}
const Op& OpOf(const Trace& trace, const std::string& name) {
  return *std::ranges::find(trace.ops, name, &Op::name);
}

TEST(OtherWorldTest, ShardsAreRoundedUpAndLieSideBySide) {
  const Trace step = Step("all_reduce");
  EXPECT_EQ(WorldOf(step), 4);
  const Trace made = WithWorld(step, 8);
  EXPECT_EQ(WorldOf(made), 8);
  EXPECT_EQ(made.name, step.name + ",world=8");
  // 12 rows are 2 for each of 8 processes, and 8 numbers are 1.
  for (const char* name : {"w", "mw", "r0"}) {
    EXPECT_EQ(Of(made, name).shape, (std::vector<int64_t>{2, 8})) << name;
  }
  for (const char* name : {"b", "mb", "r1", "s1"}) EXPECT_EQ(Of(made, name).size, Bytes(4)) << name;
  for (const char* name : {"s", "r", "g0"}) EXPECT_EQ(Of(made, name).size, Bytes(4 * 17)) << name;
  for (const char* name : {"s1", "r1"}) EXPECT_EQ(Of(made, name).offset, Bytes(4 * 16)) << name;
  for (const char* name : {"g", "d"}) EXPECT_EQ(Of(made, name).size, Bytes(4 * 8 * 17)) << name;
  EXPECT_EQ(Of(made, "g0").offset, Bytes(4 * 17));
  EXPECT_EQ(Of(made, "o0").size, Bytes(4 * 8 * 16));
  EXPECT_EQ(Of(made, "o1").size, Bytes(4 * 8));
  EXPECT_EQ(OpOf(made, "in").attributes, (std::vector<Attribute>{{"elements", 17}, {"row", 8}}));
  EXPECT_EQ(OpOf(made, "out").FindAttribute("row"), 1);
  for (const char* name : {"x", "y"}) EXPECT_EQ(Of(made, name), Of(step, name)) << name;
  EXPECT_EQ(OpOf(made, "gather").FindAttribute("bytes"), 4 * 8 * 17);
  EXPECT_EQ(OpOf(made, "other"), OpOf(step, "other"));  // its group is not that of all processes
  // The updates of 6 times 26 numbers are those of 6 times 17.
  EXPECT_EQ(OpOf(made, "step").slots[0].traffic, Bytes(1000 * 17 / 26));
  EXPECT_EQ(made.recording->requests[0].size, Bytes(64));
  EXPECT_EQ(made.recording->requests[1].size, Bytes(68));   // of the size of s
  EXPECT_EQ(made.recording->requests[2].size, Bytes(160));  // of the size of y
}

TEST(OtherWorldTest, TheMeshHasTheDimensionsOfTheGroups) {
  EXPECT_EQ(MeshOf(testing::ChainTrace()), std::vector<int64_t>{1});
  Trace step = Step("all_reduce");
  EXPECT_EQ(MeshOf(step), std::vector<int64_t>{4});
  for (Attribute& attribute : step.ops[5].attributes) {
    if (attribute.name == "stride") attribute.value = 4;
  }
  EXPECT_EQ(MeshOf(step), (std::vector<int64_t>{2, 4}));
}

// Two tensors, each of which an op computes from both, are gathered.
TEST(OtherWorldTest, ShardsThatComeFromEachOtherAreFollowedOnce) {
  testing::TraceBuilder builder;
  for (const char* name : {"a", "b"}) builder.Tensor(name, TensorKind::kActivation, 32);
  builder.Tensor("g", TensorKind::kActivation, 128);
  builder.Op("make", Phase::kForward, {}, {"a", "b"});
  builder.Op("mix", Phase::kForward, {"a", "b"}, {"a", "b"});
  builder.Op("gather", Phase::kForward, {"a"}, {"g"});
  Trace trace = builder.Build();
  for (Tensor& tensor : trace.tensors) tensor.shape = {tensor.size.count() / 4};
  trace.recording = {"PyTorch", "GPU", {}, {}, {}, {}};
  for (Op& op : trace.ops) op.recorded = RecordedCost();
  trace.ops[2].slots[0].signature = "all_gather 8";
  trace.ops[2].attributes = {{"bytes", 128}, {"ranks", 4}, {"stride", 1}};
  EXPECT_THROW(WithWorld(trace, 8), UsageError);  // they are no parameters
}

TEST(OtherWorldTest, TheSameWorldIsTheSameStep) {
  Trace step = Step();
  const Trace made = WithWorld(step, 4);
  EXPECT_EQ(made.tensors, step.tensors);
  EXPECT_EQ(made.ops, step.ops);
}

TEST(OtherWorldTest, SharedComputationsAreRefused) {
  const auto refused = [](Trace step, double ranks, int64_t world, const std::string& text) {
    for (Attribute& attribute : step.ops[5].attributes) {
      if (attribute.name == "ranks") attribute.value = ranks;
      if (attribute.name == "bytes") attribute.value = 1e6;
    }
    try {
      WithWorld(step, world);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  for (const char* kind : {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}) {
    refused(Step(kind), 4, 8, "'other' is part of a computation that 4 processes share");
  }
  for (const char* kind : {"send", "receive"}) refused(Step(kind), 1, 8, "stages of a pipeline");
  refused(Step("broadcast", Phase::kUpdate), 4, 8, "'other' sends parameters");
  refused(testing::ChainTrace(), 1, 8, "no collectives of several processes");
}

}  // namespace
}  // namespace spillway::testing
