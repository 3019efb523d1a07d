// One suite for every policy on networks of every topology. The checker finds no violation, two
// runs are equal, and more memory never turns a fit into a misfit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

struct Case {
  std::string policy;
  std::string preset;
  Network (*network)();
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* policy : {"network-wide:algo=memory",
                             "network-wide:algo=performance",
                             "liveness:algo=memory",
                             "liveness:algo=performance",
                             "vdnn-all:algo=memory",
                             "vdnn-all:algo=performance",
                             "vdnn-all:order=prefetch-first",
                             "vdnn-conv:algo=memory",
                             "vdnn-conv:algo=performance",
                             "vdnn-conv:order=prefetch-first",
                             "vdnn-aconv",
                             "vdnn-dyn",
                             "vdnnpp:algo=memory",
                             "liveness:parameters=outside",
                             "vdnnpp:parameters=outside",
                             "vdnnpp:offload=all,algo=memory",
                             "vdnnpp:offload=conv,release=lazy",
                             "vdnnpp:offload=all,release=landed",
                             "vdnnpp:offload=aconv,hint=kept",
                             "vdnnpp:offload=all,release=lazy,order=prefetch-first",
                             "vdnnpp:offload=all,release=eager,hint=offloaded",
                             "caffe",
                             "caffe:workspace=4KiB",
                             "torch",
                             "torch:workspace=1GiB",
                             "mxnet",
                             "mxnet:recompute=false",
                             "dtr",
                             "dtr:heuristic=msps",
                             "dtr:heuristic=size",
                             "capuchin",
                             "capuchin:feedback=0",
                             "checkmate",
                             "checkmate:units=12,nodes=20",
                             "tensorflow",
                             "tensorflow:target=40,life=0,workspace=0B",
                             "mmcnn",
                             "mmcnn:pnmax=1",
                             "inference-normal",
                             "inference-vdnn",
                             "ucudnn:workspace=4KiB",
                             "ucudnn:mode=wd,workspace=16KiB,batch-size=all",
                             "joint:effort=20",
                             "joint:effort=20,updates=late",
                             "joint:effort=40,micro=powerOfTwo",
                             "superneurons",
                             "superneurons:offload=conv,cache=none",
                             "superneurons:cache=belady,recompute=memory",
                             "superneurons:cache=fifo,recompute=none,workspace=static",
                             "superneurons:offload=none,recompute=speed,workspace=none"}) {
    for (const char* preset : {"torch", "vdnn", "vdnnpp", "superneurons"}) {
      for (const auto network : {testing::Chain, testing::ForkJoin})
        cases.push_back({policy, preset, network});
    }
    cases.push_back({policy, "torch", testing::Gpt});
  }
  for (const std::string& policy : testing::SuperNeuronsCombinations()) {
    cases.push_back({policy, "superneurons", testing::Normalized});
  }
  return cases;
}

class PolicyContract : public ::testing::TestWithParam<Case> {
 protected:
  PolicyContract() : device_(testing::NarrowDevice()) { RegisterBuiltinPolicies(registry_); }

  Outcome Run(const Trace& trace, Bytes memory) const {
    const RooflineCostModel cost(device_);
    return testing::Simulate({Borrow(trace), device_, Borrow(cost), memory},
                             *registry_.Make(GetParam().policy));
  }

  Device device_;
  PolicyRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(All, PolicyContract, ::testing::ValuesIn(Cases()), [](const auto& test) {
  return testing::CaseName(test.param.policy + "_" + test.param.preset + "_" +
                           test.param.network().name());
});

TEST_P(PolicyContract, IsSoundAtEveryBudget) {
  std::vector<double> factors{0.1, 1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 10.0, 100.0};
  if (GetParam().policy.starts_with("joint")) factors = {0.1, 1.1, 1.6, 10.0};  // each takes long
  for (const bool training : {true, false}) {
    const Trace trace = LowerNetwork(GetParam().network(), {4, GetParam().preset, training});
    const Bytes bound = LayerBound(trace, device_.alignment);
    bool fitted = false;
    for (const double factor : factors) {
      const Bytes memory(static_cast<int64_t>(static_cast<double>(bound.count()) * factor));
      const Outcome outcome = Run(trace, memory);
      EXPECT_THAT(Check(*outcome.trace, outcome.report), IsEmpty()) << factor;
      if (!outcome.report.fits()) {
        EXPECT_GT(outcome.report.out_of_memory->wanted,
                  outcome.report.out_of_memory->stats.largest_free);
        continue;
      }
      fitted = true;
      const Metrics& metrics = outcome.report.metrics;
      EXPECT_TRUE(outcome.report.steady) << factor;
      EXPECT_LE(metrics.peak_allocated, memory);
      EXPECT_EQ(metrics.iteration, metrics.compute + metrics.stalls.total());
      EXPECT_GE(metrics.iteration, outcome.report.bounds.compute);
      EXPECT_GE(metrics.iteration, outcome.report.bounds.copy);
      EXPECT_GE(metrics.peak_allocated, outcome.report.bounds.layer);
    }
    EXPECT_TRUE(fitted);
  }
}

TEST_P(PolicyContract, IsDeterministic) {
  const Trace trace = LowerNetwork(GetParam().network(), {4, GetParam().preset, true});
  const Report first = Run(trace, Bytes::GiB(1)).report;
  const Report second = Run(trace, Bytes::GiB(1)).report;
  EXPECT_EQ(first.decisions, second.decisions);
  EXPECT_EQ(first.placements, second.placements);
  EXPECT_EQ(first.timeline, second.timeline);
}

}  // namespace
}  // namespace spillway::testing
