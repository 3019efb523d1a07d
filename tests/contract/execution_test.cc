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
#include "sim/core/error.h"
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
      for (const auto network :
           {testing::Chain, testing::ForkJoin, testing::Residual, testing::Normalized}) {
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

  spillway::Setup SetupFor(Bytes memory) const { return {trace_, device_, cost_, memory}; }

  Execution Execute(const std::string& policy, Bytes memory,
                    std::optional<uint64_t> drain_seed = std::nullopt) const {
    return ExecuteOnCpu(SetupFor(memory), *registry_.Make(policy), {7, 3, drain_seed, CudaWork::kKernels});
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
    spillway::Setup setup = SetupFor(memory);
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

// Passes everything on but the waits of some causes.
class LosesWaits final : public Backend {
 public:
  LosesWaits(Backend& backend, std::vector<WaitCause> lost)
      : backend_(backend), lost_(std::move(lost)) {}

  std::string_view Name() const override { return backend_.Name(); }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    return backend_.Enqueue(launch, Kept(waits));
  }
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait> waits) override {
    return backend_.Copy(direction, device, host, size, Kept(waits));
  }
  void Synchronize() override { backend_.Synchronize(); }
  StreamTimes TakeTimeline() override { return backend_.TakeTimeline(); }
  void OnFree(const Block& block) override { backend_.OnFree(block); }
  void OnArrive(TensorId tensor, const Block& block, bool host) override {
    backend_.OnArrive(tensor, block, host);
  }

 private:
  const std::vector<Wait>& Kept(std::span<const Wait> waits) {
    kept_.clear();
    for (const Wait& wait : waits) {
      if (std::find(lost_.begin(), lost_.end(), wait.cause) == lost_.end()) kept_.push_back(wait);
    }
    return kept_;
  }

  Backend& backend_;
  const std::vector<WaitCause> lost_;
  std::vector<Wait> kept_;
};

// Sends every activation away after each forward op that reads it and never fences: all that stands
// between it and wrong bits are the runtime's own waits.
class EagerPolicy final : public Policy {
 public:
  void AfterOp(PolicyContext& context, OpId op) override {
    const Op& step = context.trace().op(op);
    if (step.phase != Phase::kForward) return;
    for (const TensorId input : step.inputs) {
      if (context.trace().tensor(input).kind == TensorKind::kParameter) continue;
      if (context.Offload(input)) context.Release(input);
    }
  }
};

struct MutantResult {
  std::optional<float> loss;
  bool in_order = true;  // the checker found nothing in the order of execution
};

MutantResult RunMutant(const std::vector<WaitCause>& lost, uint64_t drain_seed) {
  const Trace trace = LowerNetwork(testing::Chain(), {3, "vdnn", true});
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  EagerPolicy policy;
  BestFit arena(Bytes::MiB(64), device.alignment);
  BestFit host_pool(Bytes::MiB(64), device.alignment);
  CpuBackend backend(trace, {Bytes::MiB(64), Bytes::MiB(64), 7, drain_seed});
  LosesWaits mutant(backend, lost);
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = &cost;
  parts.arena = &arena;
  parts.host_pool = &host_pool;
  parts.backend = &mutant;
  parts.policy = &policy;
  RuntimeOptions options;
  options.iterations = 3;
  Report report;
  try {
    report = Run(parts, options);
  } catch (const InputError&) {  // labels that are none: overwritten or not there yet
    return {std::nullopt, false};
  }
  bool in_order = true;
  for (const std::string& violation : Check(trace, report)) {
    in_order = in_order && violation.find("starts before") == std::string::npos;
  }
  return {backend.loss(), in_order};
}

TEST(ExecutionMutants, SoundRunsAgreeInEveryOrder) {
  const MutantResult reference = RunMutant({}, 0);
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const MutantResult result = RunMutant({}, seed);
    EXPECT_EQ(result.loss, reference.loss);
    EXPECT_TRUE(result.in_order);
  }
}

class LostWaits : public ::testing::TestWithParam<WaitCause> {};

// kFetch: a kernel does not wait for its input. kSource: a copy does not wait for what it copies.
// kMemory: the hazards of readers and earlier owners are ignored, so that memory is reused too
// early.
INSTANTIATE_TEST_SUITE_P(ByCause, LostWaits,
                         ::testing::Values(WaitCause::kFetch, WaitCause::kSource,
                                           WaitCause::kMemory));

// Bits, not values: a lost wait often makes the loss NaN, which equals nothing.
TEST_P(LostWaits, AreSeenInTheBitsAndInTheOrder) {
  const MutantResult reference = RunMutant({}, 0);
  int wrong_bits = 0, wrong_order = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const MutantResult result = RunMutant({GetParam()}, seed);
    wrong_bits += result.loss == reference.loss ? 0 : 1;
    wrong_order += result.in_order ? 0 : 1;
  }
  EXPECT_GE(wrong_bits, 5);
  EXPECT_GE(wrong_order, 5);
}

}  // namespace
}  // namespace spillway
