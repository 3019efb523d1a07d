// Tests that evicting activations and running forward ops again gives the bits of a run that keeps
// everything. The running statistics of batch normalisation must move only once, and the mask of
// dropout must be the same again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/execute.h"
#include "tests/testing/networks.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

// A policy that evicts every activation as soon as the op that wrote or read it has been issued.
class EvictEverything final : public Policy {
 public:
  void AfterOp(PolicyContext& context, OpId id) override {
    const Op& op = context.trace().op(id);
    if (op.phase == Phase::kUpdate || context.recomputing()) return;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId tensor : *list) {
        if (context.trace().tensor(tensor).kind != TensorKind::kActivation) continue;
        if (context.NextUse(tensor)) context.Evict(tensor);
      }
    }
  }
};

struct Case {
  Network (*network)();
  std::string preset;
};

class Recomputation : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, Recomputation,
    ::testing::Values(Case{testing::Chain, "torch"}, Case{testing::ForkJoin, "torch"},
                      Case{testing::Residual, "torch"}, Case{testing::Residual, "vdnn"},
                      Case{testing::Normalized, "torch"}, Case{testing::Normalized, "vdnn"},
                      Case{testing::Rectangular, "torch"}, Case{testing::Dense, "torch"},
                      Case{testing::Gpt, "torch"}, Case{testing::Gpt, "vdnn"},
                      Case{testing::Llama, "superneurons"}),
    [](const auto& test) { return test.param.network().name() + "_" + test.param.preset; });

TEST_P(Recomputation, ChangesNoBit) {
  const Trace trace = LowerNetwork(GetParam().network(), {3, GetParam().preset, true});
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::GiB(1)};
  Policy keep_everything;
  const Outcome kept = testing::RunOnCpu(setup, keep_everything, 3);
  EXPECT_EQ(kept.report.metrics.recomputed_ops, 0);
  EvictEverything evict_everything;
  const Outcome evicted = testing::RunOnCpu(setup, evict_everything, 3);
  ASSERT_TRUE(evicted.report.fits());
  EXPECT_GE(evicted.report.metrics.recomputed_ops, 5);
  EXPECT_THAT(Check(trace, evicted.report), IsEmpty());
  EXPECT_EQ(evicted.execution->loss, kept.execution->loss);
  EXPECT_EQ(evicted.execution->weights_digest, kept.execution->weights_digest);
}

}  // namespace
}  // namespace spillway::testing
