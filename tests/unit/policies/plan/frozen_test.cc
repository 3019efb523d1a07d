#include "policies/plan/frozen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "policies/plan/plan_executor.h"
#include "sim/core/report.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using policies::JointFacts;
using policies::LeavingFrozen;

constexpr int64_t kMiB = 1 << 20;

// Forward uses w0 to w7 of 64 MiB each and `large` of 512 MiB, and backward uses them the other way
// round, so that w7 and w6 are used again soon.
Trace Step() {
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
  Trace trace = builder.Build();
  trace.recording.emplace();
  for (Op& op : trace.ops) op.recorded.emplace();
  return trace;
}

class Probe final : public Policy {
 public:
  void Plan(PolicyContext& context) override {
    std::vector<TensorId> all;
    for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (context.trace().tensor(id).kind == TensorKind::kParameter) all.push_back(id);
    }
    const JointFacts facts(context);
    for (const int64_t size : {0, 128, 384, 512, 1024}) {
      std::string names;
      for (const TensorId id : LeavingFrozen(facts, all, Bytes::MiB(size))) {
        names += context.trace().tensor(id).name + " ";
      }
      leaving.push_back(names);
    }
  }

  std::vector<std::string> leaving;
};

TEST(Frozen, LeaveAtEqualDistancesThoseThatAreUsedAgainSoonAndLargeOnesLast) {
  Probe probe;
  RunSim(Step(), FixedCost(), probe);
  // Two windows are 256 MiB, as many as w4 to w7 have.
  EXPECT_EQ(probe.leaving, (std::vector<std::string>{"", "w0 w2 ", "w0 w1 w2 w3 w4 w6 ",
                                                     "w0 w1 w2 w3 w4 w5 w6 w7 ",
                                                     "w0 w1 w2 w3 w4 w5 w6 w7 large "}));
}

TEST(Frozen, ComeInAWindow) {
  EXPECT_EQ(policies::WindowOf(Bytes::MiB(80)), Bytes::MiB(10));
  EXPECT_EQ(policies::WindowOf(Bytes::GiB(8)), Bytes::MiB(256));
}

// 1 GiB is outside, so that 128 MiB come ahead: two of the weights.
TEST(Frozen, AreOnTheirWayAsFarAsTheWindowHasRoom) {
  const Trace trace = Step();
  policies::FactsProbe probe;
  RunSim(trace, FixedCost(), probe);
  policies::JointPlan plan(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (trace.tensors[i].kind == TensorKind::kParameter) {
      plan.storages[i].fate = policies::Fate::kOutside;
    }
  }
  policies::PlanExecutor executor(probe.facts, plan, policies::KernelChooser());
  const Report report = RunSim(trace, FixedCost(), executor).report;
  // While large.fwd runs, there are y, `large`, w0 and w1.
  EXPECT_EQ(report.metrics.peak_requested, Bytes::MiB(1 + 512 + 128));
}

}  // namespace
}  // namespace spillway::testing
