// Tests of the assembly of one run: the arguments that policies get, and trials that start where
// the run started.

#include "experiments/run/run.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "experiments/run/prepare.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/execute.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

// A policy that tries another policy, if one is given, and then gives the first op one more scratch
// tensor of `size` bytes.
class Widening final : public Policy {
 public:
  explicit Widening(Bytes size, Policy* other = nullptr) : size_(size), other_(other) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    budget = device.memory;
    if (other_ != nullptr) tried = trial(*other_, device.memory);
    Trace wider = trace;
    Op& op = wider.ops.front();
    op.scratch.push_back(static_cast<TensorId>(wider.tensors.size()));
    wider.tensors.push_back(
        {"wider", TensorKind::kScratch, {size_.count() / 4}, size_, std::nullopt});
    return {device.memory, wider};
  }

  Bytes budget;
  std::optional<Report> tried;

 private:
  const Bytes size_;
  Policy* const other_;
};

class AssemblerTest : public ::testing::Test {
 protected:
  AssemblerTest() {
    const Device device = testing::NarrowDevice();
    setup_ = {std::make_shared<const Trace>(LowerNetwork(testing::Chain(), {3, "torch", true})),
              device, std::make_shared<const RooflineCostModel>(device), Bytes::MiB(64)};
  }

  Draft setup_;
};

TEST_F(AssemblerTest, ATrialStartsFromTheOriginalTraceAndIsRewritten) {
  Widening alone(Bytes::MiB(4));
  const Report expected = testing::Simulate(setup_, alone).report;
  for (const char* backend : {"sim", "cpu"}) {
    SCOPED_TRACE(backend);
    Widening other(Bytes::MiB(4));
    Widening policy(Bytes::MiB(1), &other);
    const Outcome outcome = std::string(backend) == "sim" ? testing::RunPolicy(setup_, policy)
                                                          : testing::RunOnCpu(setup_, policy, 1);
    EXPECT_EQ(outcome.trace->tensors.back().size, Bytes::MiB(1));
    ASSERT_TRUE(policy.tried);
    EXPECT_EQ(policy.tried->placements, expected.placements);
    EXPECT_EQ(policy.tried->timeline, expected.timeline);
  }
}

TEST_F(AssemblerTest, ATrialMakesAsManyIterationsAsItIsAskedFor) {
  class Trying final : public Policy {
   public:
    Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                        const std::string&) override {
      Policy other;
      steady = trial(other, device.memory);
      once = trial(other, device.memory, {1});
      return {device.memory};
    }
    Report steady, once;
  };
  // A single iteration excludes the time that allocators take to grow.
  setup_.device.device_malloc.fixed = Duration::Milliseconds(1000);
  setup_.device.page_map.fixed = Duration::Milliseconds(1000);
  setup_.trace =
      std::make_shared<const Trace>(LowerNetwork(testing::Chain(), {2048, "torch", true}));
  setup_.memory = Bytes::GiB(1);
  for (const char* allocator : {"best-fit", "stitched", "pytorch", "cnmem:initial=1MiB"}) {
    SCOPED_TRACE(allocator);
    setup_.arena = allocator;
    Trying policy;
    testing::Simulate(setup_, policy);
    EXPECT_GT(policy.steady.iterations, 1);
    EXPECT_EQ(policy.once.iterations, 1);
    EXPECT_FALSE(policy.once.steady);
    EXPECT_EQ(policy.once.metrics.iteration, policy.steady.metrics.iteration);
  }
}

TEST_F(AssemblerTest, ATrialIsOnTheAllocatorOfTheRun) {
  for (const char* allocator : {"best-fit", "pytorch"}) {
    SCOPED_TRACE(allocator);
    setup_.arena = allocator;
    Widening other(Bytes::MiB(4)), policy(Bytes::MiB(4), &other);
    const Report report = testing::Simulate(setup_, policy).report;
    EXPECT_EQ(policy.tried->placements, report.placements);
  }
}

TEST_F(AssemblerTest, PoliciesPrepareForTheMemoryOfTheRun) {
  Widening other(Bytes::MiB(1)), policy(Bytes::MiB(1), &other);
  testing::Simulate(setup_, policy);
  EXPECT_EQ(policy.budget, setup_.memory);
  EXPECT_EQ(other.budget, setup_.memory);
}

// The policy limits its memory, and the run behaves as on a device with that much memory.
TEST_F(AssemblerTest, APolicyMayUseLessMemoryThanThereIs) {
  class Modest final : public Policy {
   public:
    Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                        const std::string&) override {
      Policy other;
      tried = trial(other, Bytes::KiB(1));
      return {device.memory - Bytes::MiB(32)};
    }
    void Plan(PolicyContext& context) override {
      EXPECT_EQ(context.device().memory, Bytes::MiB(32));
      context.ReserveWorkspace(Bytes::MiB(33));  // ends the run
    }

    std::optional<Report> tried;
  };
  Modest policy;
  EXPECT_FALSE(testing::RunPolicy(setup_, policy).report.fits());
  ASSERT_TRUE(policy.tried);
  EXPECT_FALSE(policy.tried->fits());
}

TEST_F(AssemblerTest, ThePlanIsWhatThePolicyPreparedOrExports) {
  class Planning final : public Policy {
   public:
    explicit Planning(std::string exported) : exported_(std::move(exported)) {}
    Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun&,
                        const std::string& plan) override {
      return {device.memory, std::nullopt, plan + " again"};
    }
    std::string ExportPlan() const override { return exported_; }

   private:
    const std::string exported_;
  };
  setup_.policy_plan = "this";
  Planning ahead(""), while_it_runs("that");
  EXPECT_EQ(testing::Simulate(setup_, ahead).report.plan, "this again");
  EXPECT_EQ(testing::Simulate(setup_, while_it_runs).report.plan, "that");
}

TEST_F(AssemblerTest, WhatKernelsWaitIsChargedOfInferences) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const auto time_of = [&](const std::string& policy, Duration kernel_wait) {
    setup_.device.kernel_wait = kernel_wait;
    const Report report = testing::RunPolicy(setup_, *registry.Make(policy)).report;
    EXPECT_GT(report.metrics.pools[0].prefetched, Bytes(0));
    return report.metrics.iteration;
  };
  const Duration wait = Duration::Milliseconds(1);
  EXPECT_EQ(time_of("vdnn-all", wait), time_of("vdnn-all", Duration()));
  setup_.trace = std::make_shared<const Trace>(LowerNetwork(testing::Chain(), {1, "torch", false}));
  EXPECT_GE(time_of("inference-vdnn", wait), time_of("inference-vdnn", Duration()) + wait);
}

TEST_F(AssemblerTest, OnlyABackendThatExecutesHasAnExecution) {
  Policy policy;
  EXPECT_FALSE(testing::RunPolicy(setup_, policy).execution);
  const auto execution = testing::RunOnCpu(setup_, policy, 1).execution;
  ASSERT_TRUE(execution);
  EXPECT_TRUE(execution->loss);
  EXPECT_FALSE(execution->weights_digest.empty());
  EXPECT_TRUE(execution->iteration_times.empty());  // this backend has no clock
}

TEST_F(AssemblerTest, APredictionDependsOnNeitherBackendNorIterations) {
  Policy policy;
  const Report expected = testing::Simulate(setup_, policy).report;
  setup_.backend = "cpu";
  setup_.options.iterations = 5;
  const Report report = testing::Simulate(setup_, policy).report;
  EXPECT_EQ(report.iterations, expected.iterations);
  EXPECT_EQ(report.timeline, expected.timeline);
  setup_.backend = kSimulator;
  EXPECT_EQ(testing::RunPolicy(setup_, policy).report.iterations, 5);
}

TEST_F(AssemblerTest, AnUnknownBackendIsAUsageError) {
  Policy policy;
  setup_.backend = "cpu";
  EXPECT_THROW(testing::RunPolicy(setup_, policy),
               UsageError);  // this program did not add the backend
}

// The backend takes its memory before the run.
TEST_F(AssemblerTest, ABackendThatNeedsAFootprintGetsWhatIsPredicted) {
  int made = 0;
  std::optional<Footprint> footprint;
  BackendFactories backends;
  backends.Add("cpu", {[&](const BackendRequest& request) {
                         ++made;
                         footprint = request.run.footprint;
                         return CpuFactory().make(request);
                       },
                       true});
  setup_.backend = "cpu";
  setup_.options.iterations = 1;
  const auto run = [&] { return lab::Run(Decide({}, setup_, backends), backends); };
  const Outcome outcome = run();
  EXPECT_TRUE(outcome.execution);
  ASSERT_TRUE(footprint);
  EXPECT_EQ(footprint->device, outcome.report.metrics.peak_reserved);
  EXPECT_EQ(footprint->outside[NumberOf(PoolId::kHost)], Bytes(0));
  setup_.memory = Bytes::KiB(1);
  EXPECT_FALSE(run().report.fits());
  EXPECT_EQ(made, 1);  // a prediction that does not fit is not run
}

}  // namespace
}  // namespace spillway::testing
