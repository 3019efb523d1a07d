#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

//   op     f1     f2     f3     f4
//   a      [write read]..................  held until f3
//   b             [write read]
//   c                    [write read]
// The tensors have 10, 20 and 30 bytes. The peak is 50 bytes if each is freed after its last use,
// and 60 with the hold.
Trace Recorded() {
  testing::TraceBuilder builder;
  builder.Tensor("a", TensorKind::kActivation, 10)
      .Tensor("b", TensorKind::kActivation, 20)
      .Tensor("c", TensorKind::kActivation, 30);
  builder.Op("f1", Phase::kForward, {}, {"a"}).Op("f2", Phase::kForward, {"a"}, {"b"});
  builder.Op("f3", Phase::kForward, {"b"}, {"c"}).Op("f4", Phase::kForward, {"c"}, {});
  Trace trace = builder.Build();
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) op.recorded.emplace();
  trace.tensors[Index(builder.Id("a"))].held_until = OpId{2};
  trace.Validate();
  return trace;
}

Bytes PeakOf(const std::string& policy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const testing::FixedCost cost;
  const Trace trace = Recorded();
  const Draft setup{Borrow(trace), testing::RoundDevice(), Borrow<CostModel>(cost),
                    Bytes::Unlimited()};
  const auto made = registry.Make(policy);
  return testing::Simulate(setup, *made).report.metrics.peak_requested;
}

TEST(AsRecordedTest, HoldsTensorsForAsLongAsTheProgramDid) {
  EXPECT_EQ(PeakOf("liveness"), Bytes(50));
  EXPECT_EQ(PeakOf("as-recorded"), Bytes(60));
}

TEST(AsRecordedTest, RefusesWhatWasNotRecorded) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const auto policy = registry.Make("as-recorded");
  try {
    testing::RunSim(testing::ChainTrace(), testing::FixedCost(), *policy);
    FAIL() << "expected a UsageError";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("runs traces of recorded programs only"));
  }
}

}  // namespace
}  // namespace spillway::testing
