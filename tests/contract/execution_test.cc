// Policies on real bytes: whatever the policy, the budget and the legal order of execution,
// training gives the same bits as in-core, takes the simulator's decisions and puts every tensor at
// the simulator's offset. And the mutants: with the waits dropped, or memory given back too early,
// these tests would go red.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "experiments/execute/execute.h"
#include "sim/alloc/best_fit.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/networks.h"
#include "traces/lowering.h"

namespace spillway {
namespace {

using ::testing::IsEmpty;

struct Case {
  std::string policy;
  std::string preset;
  Network (*network)();
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* policy :
       {"network-wide", "liveness", "vdnn-all", "vdnn-all:order=prefetch-first",
        "vdnn-conv:algo=memory", "vdnn-dyn"}) {
    for (const char* preset : {"torch", "vdnn"}) {
      for (const auto network : {testing::Chain, testing::ForkJoin}) {
        cases.push_back({policy, preset, network});
      }
    }
  }
  return cases;
}

class ExecutionContract : public ::testing::TestWithParam<Case> {
 protected:
  ExecutionContract()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(GetParam().network(), {3, GetParam().preset, true})) {
    RegisterBuiltinPolicies(registry_);
  }

  Setup SetupFor(Bytes memory) const { return {trace_, device_, cost_, memory}; }

  Execution Execute(const std::string& policy, Bytes memory,
                    std::optional<uint64_t> drain_seed = std::nullopt) const {
    return ExecuteOnCpu(SetupFor(memory), *registry_.Make(policy), {7, drain_seed, 3});
  }

  Device device_;
  RooflineCostModel cost_;
  Trace trace_;
  PolicyRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(All, ExecutionContract, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name = test.param.policy + "_" + test.param.preset + "_" +
                                              test.param.network().name();
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

TEST_P(ExecutionContract, SameBitsDecisionsAndPlacements) {
  const Execution reference = Execute("liveness", Bytes::GiB(1));
  ASSERT_TRUE(reference.loss && std::isfinite(*reference.loss));
  const Bytes bound = LayerBound(trace_, device_.alignment);
  int fitted = 0;
  for (const double factor : {1.0, 1.2, 1.5, 2.0, 4.0, 50.0}) {
    const Bytes memory(static_cast<int64_t>(static_cast<double>(bound.count()) * factor));
    Setup setup = SetupFor(memory);
    setup.options.iterations = 3;
    const Report predicted = Simulate(setup, *registry_.Make(GetParam().policy)).report;
    for (const std::optional<uint64_t> drain_seed :
         {std::optional<uint64_t>(), std::optional<uint64_t>(1), std::optional<uint64_t>(2)}) {
      const Execution executed = Execute(GetParam().policy, memory, drain_seed);
      const Report& report = executed.outcome.report;
      ASSERT_EQ(report.fits(), predicted.fits());
      EXPECT_EQ(report.decisions, predicted.decisions);
      EXPECT_EQ(report.placements, predicted.placements);
      if (!report.fits()) continue;
      ++fitted;
      EXPECT_THAT(Check(trace_, report), IsEmpty());
      EXPECT_EQ(executed.loss, reference.loss);
      EXPECT_EQ(executed.weights_digest, reference.weights_digest);
    }
  }
  EXPECT_GE(fitted, 3);
}

// --- Mutants
// --------------------------------------------------------------------------------------

// Passes everything on but the waits.
class WithoutWaits final : public Backend {
 public:
  explicit WithoutWaits(Backend& backend) : backend_(backend) {}
  std::string_view Name() const override { return backend_.Name(); }
  Event Enqueue(const Launch& launch, std::span<const Wait>) override {
    return backend_.Enqueue(launch, {});
  }
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait>) override {
    return backend_.Copy(direction, device, host, size, {});
  }
  void Synchronize() override { backend_.Synchronize(); }
  StreamTimes TakeTimeline() override { return backend_.TakeTimeline(); }
  void OnFree(const Block& block) override { backend_.OnFree(block); }
  void OnArrive(TensorId tensor, const Block& block, bool host) override {
    backend_.OnArrive(tensor, block, host);
  }

 private:
  Backend& backend_;
};

std::optional<float> LossOf(const Trace& trace, bool drop_waits, uint64_t drain_seed,
                            std::vector<std::string>& violations) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const auto policy = registry.Make("vdnn-all");
  BestFit arena(Bytes::MiB(64), device.alignment);
  BestFit host_pool(Bytes::MiB(64), device.alignment);
  CpuBackend backend(trace, {Bytes::MiB(64), Bytes::MiB(64), 7, drain_seed});
  WithoutWaits mutant(backend);
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = &cost;
  parts.arena = &arena;
  parts.host_pool = &host_pool;
  parts.backend = drop_waits ? static_cast<Backend*>(&mutant) : &backend;
  parts.policy = policy.get();
  RuntimeOptions options;
  options.iterations = 3;
  const Report report = Run(parts, options);
  violations = Check(trace, report);
  return backend.loss();
}

// Bits, not values: a lost wait often makes the loss NaN, which equals nothing.
TEST(ExecutionMutants, DroppedWaitsAreSeenInTheBitsAndInTheOrder) {
  const Trace trace = LowerNetwork(testing::Chain(), {3, "vdnn", true});
  std::vector<std::string> violations;
  const auto sound = LossOf(trace, false, 0, violations);
  EXPECT_THAT(violations, IsEmpty());
  int wrong_bits = 0, wrong_order = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(LossOf(trace, false, seed, violations), sound);
    wrong_bits += LossOf(trace, true, seed, violations) == sound ? 0 : 1;
    wrong_order += violations.empty() ? 0 : 1;
  }
  EXPECT_GE(wrong_bits, 10);
  EXPECT_GE(wrong_order, 10);
}

}  // namespace
}  // namespace spillway
