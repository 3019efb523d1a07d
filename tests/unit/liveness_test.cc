#include "traces/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/fixtures.h"

namespace spillway {
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

}  // namespace
}  // namespace spillway
