#include "traces/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

TEST(LivenessTest, UsesAndWritersAreByStorage) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 4)
      .Tensor("y", TensorKind::kActivation, 4)
      .Tensor("z", TensorKind::kActivation, 4, "y")
      .Tensor("unused", TensorKind::kActivation, 4)
      .Op("conv", Phase::kForward, {"x"}, {"y"})
      .Op("relu", Phase::kForward, {"y"}, {"z"})
      .Op("grad", Phase::kBackward, {"z", "x"}, {"y"});
  const Trace trace = builder.Build();
  const Liveness liveness(trace);
  const TensorId y = builder.Id("y");
  EXPECT_EQ(liveness.Root(builder.Id("z")), y);
  EXPECT_THAT(liveness.Uses(y), ElementsAre(OpId{0}, OpId{1}, OpId{2}));
  EXPECT_THAT(liveness.Writers(y), ElementsAre(OpId{0}, OpId{1}, OpId{2}));
  EXPECT_THAT(liveness.Uses(builder.Id("x")), ElementsAre(OpId{0}, OpId{2}));
  EXPECT_THAT(liveness.Storages(OpId{1}), ElementsAre(y));
  EXPECT_THAT(liveness.Storages(OpId{2}), ElementsAre(y, builder.Id("x")));
  EXPECT_EQ(liveness.LastUse(builder.Id("unused")), std::nullopt);
  EXPECT_EQ(liveness.FirstUse(y), OpId{0});
}

TEST(LivenessTest, AlikeAreOpsOfOneKindOnCommonData) {
  testing::TraceBuilder builder;
  for (const char* input : {"x", "u"}) builder.Tensor(input, TensorKind::kInput, 4);
  for (const char* name : {"y", "z", "v"}) builder.Tensor(name, TensorKind::kActivation, 4);
  Trace trace = builder.Tensor("part", TensorKind::kInput, 2, "x")
                    .Op("a", Phase::kForward, {"x"}, {"y"})
                    .Op("b", Phase::kForward, {"part"}, {"z"})
                    .Op("elsewhere", Phase::kForward, {"u"}, {"v"})
                    .Op("backward", Phase::kBackward, {"x"}, {"y"})
                    .Op("other", Phase::kForward, {"x"}, {"y"})
                    .Build();
  trace.ops[4].type = OpType::kRelu;
  ASSERT_NE(trace.ops[0].type, OpType::kRelu);
  const Liveness liveness(trace);
  EXPECT_TRUE(Alike(trace, liveness, OpId{0}, OpId{1}));
  for (const int other : {2, 3, 4}) {
    EXPECT_FALSE(Alike(trace, liveness, OpId{0}, static_cast<OpId>(other))) << other;
  }
}

// Chains of aliases in both directions, looked up at their ends and in the middle.
TEST(LivenessTest, RootsAreThoseOfTheTrace) {
  testing::TraceBuilder builder;
  builder.Tensor("a", TensorKind::kScratch, 4);
  for (const char* link : {"ab", "bc", "cd", "ae"}) {
    builder.Tensor(std::string(1, link[1]), TensorKind::kScratch, 4, std::string(1, link[0]));
  }
  Trace trace = builder.Build();
  for (size_t i = 1; i < trace.tensors.size(); ++i) trace.tensors[i].offset = Bytes(1 << i);
  for (int turn = 0; turn < 2; ++turn) {
    const Liveness liveness(trace);
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      EXPECT_EQ(liveness.Root(id), trace.Root(id)) << turn << " " << i;
      EXPECT_EQ(liveness.Offset(id), trace.OffsetInStorage(id)) << turn << " " << i;
    }
    std::reverse(trace.tensors.begin(), trace.tensors.end());
    for (Tensor& tensor : trace.tensors) {
      if (tensor.alias_of) {
        tensor.alias_of = static_cast<TensorId>(trace.tensors.size() - 1 - Index(*tensor.alias_of));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::testing
