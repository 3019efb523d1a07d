// Policies on real bytes: for every policy, budget and legal order of execution, training gives the
// bits of the in-core run. Decisions and offsets are the simulator's. mutants_test.cc shows that
// these tests can fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "experiments/run/prepare.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/execute.h"
#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

struct Case {
  std::string policy;
  std::string preset;
  Network (*network)();
  std::string allocator = "best-fit";
  std::string compression = {};
  size_t pools = 0;  // outside pools in addition to the host's; the first is small and fast
};

// A preset determines the tensors that a framework keeps for backward.
constexpr const char* kPresets[] = {"torch", "vdnn", "vdnnpp", "superneurons"};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* policy : {"network-wide",
                             "liveness",
                             "vdnn-all",
                             "vdnn-all:order=prefetch-first",
                             "vdnn-conv:algo=memory",
                             "vdnn-aconv",
                             "vdnn-dyn",
                             "vdnnpp",
                             "vdnnpp:offload=all,release=lazy",
                             "vdnnpp:offload=conv,release=landed",
                             "vdnnpp:offload=conv,order=prefetch-first,hint=kept",
                             "vdnnpp:offload=aconv,release=eager,hint=offloaded",
                             "caffe",
                             "torch",
                             "mxnet",
                             "dtr",
                             "dtr:heuristic=lru",
                             "capuchin",
                             "tensorflow:target=60,life=0",
                             "liveness:parameters=outside",
                             "mmcnn",
                             "inference-normal",
                             "inference-vdnn",
                             "vdnnpp:parameters=outside",
                             "vdnnpp:offload=all,release=lazy,parameters=outside",
                             "superneurons",
                             "superneurons:cache=none,recompute=memory"}) {
    for (const char* preset : kPresets) {
      for (const auto network :
           {testing::Chain, testing::ForkJoin, testing::Residual, testing::Normalized,
            testing::Rectangular, testing::Dense, testing::Gpt, testing::Llama}) {
        cases.push_back({policy, preset, network});
      }
    }
  }
  for (const std::string& policy : testing::SuperNeuronsCombinations()) {
    for (const auto network : {testing::Residual, testing::Normalized, testing::Gpt}) {
      cases.push_back({policy, "superneurons", network});
    }
  }
  cases.push_back({"vdnn-all", "torch", testing::Vit});
  cases.push_back({"superneurons", "superneurons", testing::Vit});
  // One preset is enough, because an integer program is solved for every budget and order.
  for (const auto network :
       {testing::Chain, testing::ForkJoin, testing::Residual, testing::Normalized,
        testing::Rectangular, testing::Dense, testing::Gpt, testing::Llama}) {
    cases.push_back({"checkmate:searched=0", "torch", network});
  }
  for (const char* allocator :
       {"first-fit:granularity=1KiB", "stitched:page=4KiB", "planned:effort=quick"}) {
    cases.push_back({"superneurons", "superneurons", testing::Normalized, allocator});
    cases.push_back({"superneurons", "superneurons", testing::Dense, allocator});
  }
  for (const char* allocator :
       {"first-fit:granularity=1KiB", "high-end", "high-end:reading=text", "cnmem:initial=8KiB",
        "pytorch", "pytorch:expandable_segments=true", "native", "stitched:page=4KiB", "planned"}) {
    cases.push_back({"vdnn-all", "torch", testing::Residual, allocator});
  }
  for (const char* allocator : {"stitched:page=4KiB", "planned"}) {
    cases.push_back({"vdnn-conv:order=prefetch-first", "torch", testing::Normalized, allocator});
  }
  for (const char* policy : {"ucudnn:workspace=4KiB", "ucudnn:mode=wd,workspace=64KiB",
                             "joint:effort=50", "joint:effort=50,micro=all"}) {
    for (const auto network :
         {testing::Chain, testing::ForkJoin, testing::Normalized, testing::Gpt, testing::Llama}) {
      cases.push_back({policy, "torch", network, "best-fit"});
    }
  }
  for (const char* policy : {"vdnn-all", "vdnn-conv", "vdnnpp:offload=all,release=lazy"}) {
    for (const auto network : {testing::Chain, testing::ForkJoin, testing::Normalized}) {
      cases.push_back({policy, "torch", network, "best-fit", "all:piece=4KiB,buffers=1,threads=2"});
    }
  }
  cases.push_back({"vdnn-all", "vdnn", testing::Residual, "pytorch", "all:threads=1"});
  for (const char* policy : {"vdnn-all", "vdnn-conv:algo=memory", "vdnnpp:offload=all,release=lazy",
                             "superneurons:cache=none,recompute=none"}) {
    for (const size_t pools : {1, 2}) {
      for (const auto network : {testing::Residual, testing::Normalized}) {
        cases.push_back({policy, "torch", network, "best-fit", {}, pools});
      }
    }
  }
  cases.push_back({"vdnn-all", "torch", testing::Residual, "best-fit", "all:piece=4KiB", 1});
  return cases;
}

class ExecutionContract : public ::testing::TestWithParam<Case> {
 protected:
  ExecutionContract()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(GetParam().network(), {3, GetParam().preset, true})) {
    RegisterBuiltinPolicies(registry_);
    for (size_t i = 0; i < GetParam().pools; ++i) {
      ExternalPool pool;
      pool.kind = i == 0 ? ExternalPool::Kind::kPeer : ExternalPool::Kind::kNvme;
      pool.size = Bytes::KiB(i == 0 ? 16 : 1024);
      pool.in = pool.out = {{device_.d2h.bandwidth.bytes_per_second * (i == 0 ? 4 : 2)},
                            Duration::Microseconds(1)};
      pool.duplex = pool.in.bandwidth;
      pool.over_host = i > 0;
      device_.pools.push_back(pool);
    }
  }

  Draft SetupFor(Bytes memory) const { return {Borrow(trace_), device_, Borrow(cost_), memory}; }

  Device device_;
  RooflineCostModel cost_;
  Trace trace_;
  PolicyRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(All, ExecutionContract, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           return testing::CaseName(test.param.policy + "_" + test.param.preset +
                                                    "_" + test.param.network().name() + "_" +
                                                    test.param.allocator + test.param.compression +
                                                    std::string(test.param.pools, '+'));
                         });

TEST_P(ExecutionContract, SameBitsDecisionsAndPlacements) {
  const Outcome reference = testing::RunOnCpu(
      {Borrow(trace_), device_, Borrow(cost_), Bytes::GiB(1)}, *registry_.Make("liveness"), 3);
  ASSERT_TRUE(reference.execution->loss && std::isfinite(*reference.execution->loss));
  const Bytes bound = LayerBound(trace_, device_.alignment);
  int fitted = 0;
  int64_t stored = 0;
  PoolUse beside;  // the sum over all pools except the host's
  for (const double factor : {1.0, 1.2, 1.5, 2.0, 4.0, 50.0}) {
    const Bytes memory(static_cast<int64_t>(static_cast<double>(bound.count()) * factor));
    lab::Case asked;
    asked.allocator = GetParam().allocator;
    Draft named = SetupFor(memory);
    named.arena = asked.allocator.Undecided();
    named.policy = GetParam().policy;
    named.options.iterations = 3;
    const Draft setup = DecidePlacement(asked, named, {});
    const Report predicted = testing::RunPolicy(setup, *registry_.Make(GetParam().policy)).report;
    Draft compressed = setup;
    if (!GetParam().compression.empty()) {
      compressed.compression = std::make_shared<const CompressionPlan>(
          ParseCompression(GetParam().compression), device_);
    }
    for (const std::optional<uint64_t> drain_seed :
         {std::optional<uint64_t>(), std::optional<uint64_t>(1), std::optional<uint64_t>(2)}) {
      const Outcome executed =
          testing::RunOnCpu(compressed, *registry_.Make(GetParam().policy), 3, drain_seed);
      const Report& report = executed.report;
      ASSERT_EQ(report.fits(), predicted.fits());
      EXPECT_EQ(report.decisions, predicted.decisions);
      EXPECT_EQ(report.placements, predicted.placements);
      if (!report.fits()) continue;
      ++fitted;
      if (compressed.compression) {
        const CompressionSummary& summary = executed.compression.value();
        EXPECT_EQ(summary.stored.size(), static_cast<size_t>(summary.storages));
        stored += summary.storages;
      }
      for (size_t i = 1; i < kMaxPools; ++i) {
        beside.offloaded += report.metrics.pools[i].offloaded;
        beside.prefetched += report.metrics.pools[i].prefetched;
      }
      EXPECT_THAT(Check(*executed.trace, report), IsEmpty());
      EXPECT_EQ(executed.execution->loss, reference.execution->loss);
      EXPECT_EQ(executed.execution->weights_digest, reference.execution->weights_digest);
    }
  }
  EXPECT_GE(fitted, 3);
  EXPECT_EQ(stored > 0, !GetParam().compression.empty());
  EXPECT_EQ(beside.offloaded > Bytes(0), GetParam().pools > 0);
  EXPECT_EQ(beside.prefetched > Bytes(0), GetParam().pools > 0);
}

// A policy that divides the batch of every convolution at random.
class RandomMicroBatches final : public Policy {
 public:
  KernelPlan ChooseKernels(PolicyContext& context, OpId id) override {
    const Op& op = context.trace().op(id);
    if (op.type != OpType::kConv2d) return {};
    KernelPlan plan;
    for (uint32_t slot = 0; slot < op.slots.size(); ++slot) {
      for (int64_t left = op.batch; left > 0; left -= plan.back().batch) {
        plan.push_back({slot, 0, 1 + static_cast<int64_t>(random_() % left)});
      }
    }
    divided += plan.size() > op.slots.size() ? 1 : 0;
    return plan;
  }

  int divided = 0;

 private:
  std::mt19937 random_{5};
};

TEST(MicroBatchTest, AnyDivisionOfTheBatchGivesTheSameBits) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  for (const auto network : {testing::Chain, testing::ForkJoin, testing::Normalized}) {
    const Trace trace = LowerNetwork(network(), {5, "torch", true});
    Draft setup{Borrow(trace), device, Borrow(cost), Bytes::GiB(1)};
    setup.options.iterations = 3;
    Policy whole;
    RandomMicroBatches divided, again;
    const Execution want = *testing::RunOnCpu(setup, whole, 3).execution;
    const Outcome got = testing::RunOnCpu(setup, divided, 3);
    const Report predicted = testing::RunPolicy(setup, again).report;
    EXPECT_GT(divided.divided, 10);
    EXPECT_EQ(got.execution->loss, want.loss);
    EXPECT_EQ(got.execution->weights_digest, want.weights_digest);
    EXPECT_EQ(got.report.decisions, predicted.decisions);
    EXPECT_EQ(got.report.placements, predicted.placements);
    EXPECT_THAT(Check(trace, got.report), IsEmpty());
  }
}

}  // namespace
}  // namespace spillway::testing
