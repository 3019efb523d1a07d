// Properties of the search on drawn steps: chains of ops whose results autograd saves, with skips.

#include "policies/recorded/step_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "policies/recorded/step_executor.h"
#include "tests/testing/fixtures.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

// Returns the chain with drawn sizes, times and moves.
Trace Drawn(uint64_t seed) {
  std::mt19937_64 random(seed);
  Trace trace = HookedChain();
  for (Tensor& tensor : trace.tensors) {
    if (tensor.alias_of) continue;
    tensor.size = Bytes(static_cast<int64_t>(1 + random() % 40));
    tensor.shape = {tensor.size.count()};
  }
  for (Op& op : trace.ops) {
    op.recorded->time = Duration::Nanoseconds(static_cast<int64_t>(1 + random() % 20));
  }
  if (random() % 4 == 0) trace.hooks->evict.reset();
  if (random() % 4 == 0) trace.hooks->offload.reset();
  return trace;
}

class StepSearchTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::vector<StepRung> Rungs(Bytes memory) {
    const TrialRun trial([&](Policy& policy, Bytes, const TrialOptions&) {
      return RunSim(trace_, cost_, policy).report;
    });
    StepExecutor nothing({}, places_, trace_.ops.size());
    const Bytes peak = RunSim(trace_, cost_, nothing).report.metrics.peak_allocated;
    return SearchSteps(trace_, cost_, places_, trial,
                       {Bytes(peak.count() / 2), peak, std::min(peak, memory), 300});
  }

  const Trace trace_ = Drawn(GetParam());
  const FixedCost cost_;
  const Liveness liveness_{trace_};
  const StepPlaces places_{trace_, liveness_};
};

TEST_P(StepSearchTest, MoreMemoryNeverHasASlowerPlanOrNone) {
  const std::vector<StepRung> rungs = Rungs(Bytes::Unlimited());
  for (size_t i = 1; i < rungs.size(); ++i) {
    EXPECT_LE(rungs[i - 1].memory, rungs[i].memory);
    EXPECT_LE(rungs[i - 1].fits, rungs[i].fits);
    if (!rungs[i].fits) continue;
    EXPECT_LE(rungs[i].peak, rungs[i].memory);
    if (rungs[i - 1].fits) {
      EXPECT_LE(rungs[i].time, rungs[i - 1].time);
    }
  }
}

TEST_P(StepSearchTest, ABudgetDoesNotChangeTheRungsBelow) {
  const std::vector<StepRung> all = Rungs(Bytes::Unlimited());
  const std::vector<StepRung> few = Rungs(all[all.size() / 2].memory);
  ASSERT_LT(few.size(), all.size());
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i].plan, all[i].plan);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StepSearchTest, ::testing::Range<uint64_t>(1, 13));

}  // namespace
}  // namespace spillway::testing
