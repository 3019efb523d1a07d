// Policies on a real GPU: decisions and placements are the simulator's, and the bits depend on
// neither policy nor memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/recorder.h"
#include "experiments/run/execute.h"
#include "experiments/run/prepare.h"
#include "experiments/tools/measure/kernel_recording.h"
#include "experiments/tools/measure/validation.h"
#include "policies/mmcnn/layer_split.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "sim/core/check.h"
#include "sim/cost/deterministic.h"
#include "sim/cost/table_cost.h"
#include "tests/testing/execute.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

// Every policy uses the fastest kernels, so that all runs compute the same.
constexpr const char* kPolicies[] = {"network-wide:algo=performance", "liveness:algo=performance",
                                     "vdnn-all:algo=performance", "vdnn-conv:algo=performance"};

class CudaExecution : public ::testing::TestWithParam<Network (*)()> {
 protected:
  void SetUp() override {
    try {
      machine_ = std::make_shared<CudaMachine>(CudaMachine::Options{0, "fp32", kSeed});
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << "NOT TESTED: " << error.what();
    }
    RegisterBuiltinPolicies(registry_);
    device_ = testing::NarrowDevice();
    UseTraces(LowerNetwork(GetParam()(), {3, "torch", true}), {});
  }

  // Expects that every policy and budget gives the same bits, and what the simulator predicts.
  void CheckPolicies();

  // Sets the trace to run. `rewritten` are the traces that policies make from it.
  void UseTraces(Trace trace, const std::vector<Trace>& rewritten) {
    trace_ = std::move(trace);
    RecordOptions record;
    record.min_repeats = record.max_repeats = 5;
    record.min_time = record.clock_warmup = Duration();
    CostTable table = Record(trace_, record);
    for (const Trace& other : rewritten) AddMissing(Record(other, record), table);
    cost_ = std::make_unique<DeterministicCostModel>(
        std::make_unique<TableCostModel>(std::move(table), device_));
  }

  Draft SetupFor(Bytes memory, const AllocatorChoice& allocator = "best-fit") const {
    return {Borrow(trace_), device_, Borrow(*cost_), memory, allocator.Undecided()};
  }

  Validation Run(Draft setup, const std::string& policy, CudaRun run = {}) const {
    run.seed = kSeed;
    BackendFactories backends;
    backends.Add("cuda", CudaFactory(machine_, run));
    setup.backend = "cuda";
    setup.options.iterations = 3;
    setup.policy = policy;
    Case asked;
    asked.allocator = setup.arena.name();
    return Validate(Decide(asked, std::move(setup), backends), backends);
  }

  static constexpr uint64_t kSeed = 7;
  PolicyRegistry registry_;
  Device device_;
  Trace trace_;
  std::unique_ptr<CostModel> cost_;
  std::shared_ptr<CudaMachine> machine_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaExecution, ::testing::Values(testing::Chain, testing::ForkJoin),
                         [](const auto& test) { return test.param().name(); });

// Slices, bands and sums of mmcnn use other kernels, so the arithmetic may differ.
TEST_P(CudaExecution, InfersTheSameInTheLeastMemory) {
  for (const auto network : {GetParam(), &testing::Deep}) {
    const Trace whole = LowerNetwork(network(), {1, "torch", false});
    const Bytes least = LeastMmcnnMemory(whole, device_.alignment).size;
    UseTraces(whole, {DivideForMmcnn(whole, least, device_.alignment).trace});
    const Validation in_core = Run(SetupFor(Bytes::GiB(1)), "liveness");
    const Validation divided = Run(SetupFor(least), "mmcnn");
    ASSERT_TRUE(divided.fits()) << whole.name;
    EXPECT_TRUE(divided.parity()) << whole.name;
    EXPECT_THAT(divided.violations, IsEmpty()) << whole.name;
    EXPECT_LE(divided.measured.report.metrics.peak_reserved, least);
    const float loss = in_core.measured.execution->loss.value();
    EXPECT_NEAR(divided.measured.execution->loss.value(), loss, 1e-4 * std::abs(loss))
        << whole.name;
  }
}

TEST_P(CudaExecution, SameBitsDecisionsAndPlacementsUnderEveryPolicy) { CheckPolicies(); }

TEST_P(CudaExecution, SameBitsWithMicroBatchesAndClipping) {
  UseTraces(LowerNetwork(GetParam()(), {.batch = 2, .accumulate = 2, .clip_norm = 0.1}), {});
  CheckPolicies();
}

void CudaExecution::CheckPolicies() {
  const Validation reference = Run(SetupFor(Bytes::GiB(1)), "liveness:algo=performance");
  ASSERT_TRUE(reference.measured.execution->loss &&
              std::isfinite(*reference.measured.execution->loss));
  ASSERT_FALSE(reference.measured.execution->weights_digest.empty());
  const Bytes bound = LayerBound(trace_, device_.alignment);
  int fitted = 0;
  for (const char* policy : kPolicies) {
    for (const double factor : {1.2, 2.0, 8.0, 100.0}) {
      const Bytes memory(static_cast<int64_t>(static_cast<double>(bound.count()) * factor));
      const Validation validation = Run(SetupFor(memory), policy);
      if (!validation.predicted.report.fits()) continue;
      ++fitted;
      EXPECT_TRUE(validation.decisions_equal) << policy << " " << factor;
      EXPECT_TRUE(validation.placements_equal) << policy << " " << factor;
      EXPECT_THAT(validation.violations, IsEmpty()) << policy << " " << factor;
      EXPECT_EQ(validation.measured.execution->loss, reference.measured.execution->loss)
          << policy << " " << factor;
      EXPECT_EQ(validation.measured.execution->weights_digest,
                reference.measured.execution->weights_digest)
          << policy << " " << factor;
    }
  }
  EXPECT_GE(fitted, 6);
}

// The allocators take memory from the driver by block, by segment, by page, and by pages at two
// addresses.
TEST_P(CudaExecution, SameBitsUnderEveryAllocator) {
  const char* const policy = "vdnn-all:algo=performance";
  const Validation reference = Run(SetupFor(Bytes::GiB(1)), policy);
  std::vector<std::string> allocators{"pytorch:expandable_segments=true", "planned"};
  for (const AllocatorInfo& info : Allocators()) allocators.push_back(info.name);
  for (const std::string& allocator : allocators) {
    const Validation validation = Run(SetupFor(Bytes::GiB(1), allocator), policy);
    ASSERT_TRUE(validation.predicted.report.fits()) << allocator;
    EXPECT_TRUE(validation.parity()) << allocator;
    EXPECT_THAT(validation.violations, IsEmpty()) << allocator;
    EXPECT_EQ(validation.measured.execution->weights_digest,
              reference.measured.execution->weights_digest)
        << allocator;
  }
}

TEST_P(CudaExecution, TimelineOfCuptiIsInOrder) {
  CudaRun run;
  run.timeline = CudaTimeline::kActivity;
  try {
    const Validation validation = Run(SetupFor(Bytes::GiB(1)), "vdnn-all:algo=performance", run);
    EXPECT_TRUE(validation.parity());
    EXPECT_THAT(validation.violations, IsEmpty());
    EXPECT_GT(validation.measured.report.metrics.compute, Duration());
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << "NOT TESTED: " << error.what();
  }
}

// The host keeps feature maps compressed. The bits are the same, and the densities agree with the
// CPU backend's up to differences in arithmetic.
TEST_P(CudaExecution, SameBitsWithCompression) {
  const char* const policy = "vdnn-all:algo=performance";
  const Draft plain = SetupFor(Bytes::GiB(1));
  const Validation reference = Run(plain, policy);
  for (const char* text : {"all:piece=4KiB,buffers=1,threads=1",
                           "all:piece=4KiB,buffers=3,threads=2", "all:threads=4"}) {
    Draft setup = plain;
    setup.compression = std::make_shared<const CompressionPlan>(ParseCompression(text), device_);
    const Validation validation = Run(setup, policy);
    EXPECT_TRUE(validation.parity()) << text;
    EXPECT_THAT(validation.violations, IsEmpty()) << text;
    EXPECT_EQ(validation.measured.execution->weights_digest,
              reference.measured.execution->weights_digest)
        << text;
    const auto& summary = validation.measured.compression;
    ASSERT_TRUE(summary && summary->storages > 0) << text;
    EXPECT_EQ(summary->stored.size(), static_cast<size_t>(summary->storages));
    const Outcome cpu = testing::RunOnCpu(setup, *registry_.Make(policy), 3);
    for (size_t i = 0; i < summary->stored.size(); ++i) {
      EXPECT_EQ(summary->stored[i].storage, cpu.compression->stored[i].storage);
      EXPECT_NEAR(summary->stored[i].density, cpu.compression->stored[i].density, 0.02);
    }
  }
}

TEST_P(CudaExecution, LosesAsTheCpuBackendDoes) {
  const Draft setup = SetupFor(Bytes::GiB(1));
  const Validation validation = Run(setup, "liveness");
  const Outcome cpu = testing::RunOnCpu(setup, *registry_.Make("liveness"), 3);
  ASSERT_TRUE(cpu.execution->loss && validation.measured.execution->loss);
  EXPECT_NEAR(*validation.measured.execution->loss, *cpu.execution->loss,
              1e-4 * std::abs(*cpu.execution->loss));
}

TEST_P(CudaExecution, SpinsForThePredictedTime) {
  const Validation validation = Run(SetupFor(Bytes::GiB(1)), "liveness", {1, CudaWork::kSpin});
  EXPECT_TRUE(validation.parity());
  EXPECT_TRUE(validation.measured.execution->weights_digest.empty());  // nothing was computed
}

}  // namespace
}  // namespace spillway::testing
