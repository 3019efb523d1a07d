// Tests of the certified lower bound: no run is faster, and on traces small enough to try every
// plan the bound is close.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "policies/plan/bound.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "policies/plan/plan_executor.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

TEST(JointBoundTest, NoPolicyIsFaster) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  int held = 0;
  for (const auto network : {testing::Chain, testing::ForkJoin, testing::Residual,
                             testing::Normalized, testing::Dense}) {
    for (const bool training : {true, false}) {
      const Trace trace = LowerNetwork(network(), {8, "torch", training});
      Draft setup{Borrow(trace), device, Borrow(cost), Bytes::Unlimited()};
      const Report in_core = Predict(Ideal(setup)).report;
      for (const double percent : {0, 10, 30, 60, 100}) {
        setup.memory = MemoryAt(percent, LayerBound(trace, device.alignment),
                                in_core.metrics.peak_reserved, device.alignment);
        const Duration bound = JointBound(trace, cost, setup.memory);
        for (const PolicyRegistry::Entry& entry : registry.entries()) {
          if (entry.name == "plan" || entry.traits.for_recordings) continue;
          const bool searches = !entry.traits.tried_by_default;
          const Outcome run =
              testing::Simulate(setup, *registry.Make(searches ? "joint:effort=300" : entry.name));
          if (!run.report.fits() || !JointBoundHolds(trace, device.alignment, run.report)) continue;
          EXPECT_GE(run.report.metrics.iteration, bound)
              << entry.name << " on " << trace.name << " at " << percent << " %";
          ++held;
        }
      }
    }
  }
  EXPECT_GT(held, 150);
}

TEST(JointBoundTest, HoldsOnlyOfWhatItAssumes) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Trace trace = LowerNetwork(testing::Chain(), {8, "torch", true});
  const auto holds = [&](const std::string& policy) {
    const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::MiB(8)};
    return JointBoundHolds(trace, device.alignment,
                           testing::Simulate(setup, *registry.Make(policy)).report);
  };
  EXPECT_TRUE(holds("vdnnpp:offload=all"));
  EXPECT_FALSE(holds("vdnnpp:offload=all,parameters=outside"));
  // A policy that halves the batch of every convolution.
  class Halving final : public Policy {
   public:
    KernelPlan ChooseKernels(PolicyContext& context, OpId id) override {
      const Op& op = context.trace().op(id);
      if (op.type != OpType::kConv2d) return {};
      KernelPlan plan;
      for (uint32_t slot = 0; slot < op.slots.size(); ++slot) {
        plan.insert(plan.end(), 2, {slot, 0, op.batch / 2});
      }
      return plan;
    }
  };
  Halving halving;
  const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::MiB(64)};
  EXPECT_FALSE(JointBoundHolds(trace, device.alignment, testing::Simulate(setup, halving).report));
}

// A chain of forward ops f1, f2, ... and the backward ops of their outputs, with random sizes and
// times. In every third chain, kernels run faster directly after one another.
struct SmallChain {
  explicit SmallChain(uint64_t seed) : cost(Duration::Nanoseconds(10)) {
    std::mt19937_64 random(seed);
    const int length = 3 + static_cast<int>(random() % 3);
    testing::TraceBuilder builder;
    const auto size = [&] { return static_cast<int64_t>(10 + 10 * (random() % 12)); };
    builder.Tensor("y0", TensorKind::kInput, size());
    for (int i = 1; i <= length; ++i) {
      builder.Tensor("y" + std::to_string(i), TensorKind::kActivation, size());
      builder.Tensor("d" + std::to_string(i - 1), TensorKind::kGradient, size());
    }
    const auto name = [](const char* what, int i) { return what + std::to_string(i); };
    for (int i = 1; i <= length; ++i) {
      builder.Op(name("f", i), Phase::kForward, {name("y", i - 1)}, {name("y", i)});
    }
    for (int i = length; i >= 1; --i) {
      const std::string y = name("y", i), x = name("y", i - 1), dx = name("d", i - 1);
      if (i == length) {
        builder.Op(name("b", i), Phase::kBackward, {y, x}, {dx});
      } else {
        builder.Op(name("b", i), Phase::kBackward, {y, x, name("d", i)}, {dx});
      }
    }
    trace = builder.Build();
    for (Op& op : trace.ops) {
      op.recomputable = op.phase == Phase::kForward && random() % 4 > 0;
      const auto time = Duration::Nanoseconds(static_cast<int64_t>(1 + random() % 20));
      const auto in_sequence = Duration::Picoseconds(seed % 3 == 0 ? time.picoseconds() / 2 : 0);
      cost.Set(op.name, {{"default", time, Bytes(0), true, in_sequence}});
    }
  }

  Trace trace;
  testing::FixedCost cost;
};

// Tries every plan of up to ten ops: each storage is kept, offloaded with each possible prefetch,
// evicted once, or evicted repeatedly.
TEST(JointBoundTest, EveryPlanOfASmallChainIsSlowerAndTheSearchFindsTheBest) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  int fitted = 0, exact = 0, slower = 0, beyond = 0;
  Duration found, best;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const SmallChain chain(seed);
    FactsProbe probe;
    testing::RunSim(chain.trace, chain.cost, probe, {});
    const JointFacts& facts = *probe.facts;
    std::vector<JointPlan> plans{JointPlan(chain.trace)};
    for (const TensorId id : facts.movable()) {
      const Gap& gap = *facts.GapOf(id);
      std::vector<StoragePlan> fates{{}, {Fate::kEvict, OpId{}, false}};
      for (size_t op = Index(gap.left) + 1; op <= Index(gap.needed); op += 2) {
        fates.push_back({Fate::kOffload, static_cast<OpId>(op), false});
      }
      std::vector<JointPlan> more;
      for (const JointPlan& plan : plans) {
        for (const StoragePlan& fate : fates) {
          more.push_back(plan);
          more.back().storages[Index(id)] = fate;
        }
      }
      plans = std::move(more);
      if (plans.size() > 1500) break;
    }
    const Bytes floor = LayerBound(chain.trace, Bytes(1));
    for (const int64_t spare : {0, 40, 100}) {
      testing::RunSettings settings;
      settings.memory = floor + Bytes(spare);
      std::optional<Duration> fastest;
      for (const JointPlan& plan : plans) {
        PlanExecutor executor(probe.facts, plan, {});
        const Report report = testing::RunSim(chain.trace, chain.cost, executor, settings).report;
        if (!report.fits()) continue;
        fastest = std::min(fastest.value_or(Duration::Max()), report.metrics.iteration);
      }
      if (!fastest) continue;
      ++fitted;
      const Duration bound = JointBound(chain.trace, chain.cost, settings.memory);
      const Duration in_core = JointBound(chain.trace, chain.cost, Bytes::Unlimited());
      slower += *fastest > in_core ? 1 : 0;
      beyond += bound > in_core ? 1 : 0;
      EXPECT_LE(bound, *fastest) << "seed " << seed << ", spare " << spare;
      const Report joint =
          testing::RunSim(chain.trace, chain.cost, *registry.Make("joint:effort=400"), settings)
              .report;
      ASSERT_TRUE(joint.fits());
      EXPECT_GE(joint.metrics.iteration, bound);
      exact += joint.metrics.iteration <= *fastest ? 1 : 0;
      found += joint.metrics.iteration;
      best += *fastest;
    }
  }
  EXPECT_GT(fitted, 40);
  // In most runs that memory slows down, the bound exceeds the in-core bound.
  EXPECT_GT(beyond * 2, slower);
  EXPECT_GE(exact * 10, fitted * 8);
  EXPECT_LE(found.picoseconds() * 100, best.picoseconds() * 102);
}

// Storages of equal size and cost share variables of the linear program.
TEST(JointBoundTest, EqualStoragesCountAsOftenAsThereAreStorages) {
  // Returns the bound of a chain in which each layer's storages are `apart` bytes larger than the
  // ones before. Each forward op writes one storage, or else two, which are recomputed together.
  const auto bound_of = [](int64_t apart, bool two, Bytes memory) {
    constexpr int kLayers = 12;
    testing::TraceBuilder builder;
    builder.Tensor("y0", TensorKind::kInput, 2000).Tensor("d12", TensorKind::kGradient, 10);
    for (int i = 1; i <= kLayers; ++i) {
      builder.Tensor(fmt::format("y{}", i), TensorKind::kActivation, 2000 + apart * i);
      builder.Tensor(fmt::format("z{}", i), TensorKind::kActivation, 3000 + apart * i);
      builder.Tensor(fmt::format("d{}", i - 1), TensorKind::kGradient, 10);
    }
    for (int i = 1; i <= kLayers; ++i) {
      const std::string x = fmt::format("y{}", i - 1), y = fmt::format("y{}", i);
      const std::string z = fmt::format("z{}", i);
      if (two) {
        builder.Op("f" + z, Phase::kForward, {x}, {y, z});
      } else {
        builder.Op("f" + y, Phase::kForward, {x}, {y}).Op("f" + z, Phase::kForward, {y}, {z});
      }
    }
    builder.Op("loss", Phase::kBackward, {"y12"}, {"d12"});
    for (int i = kLayers; i >= 1; --i) {
      builder.Op(fmt::format("b{}", i), Phase::kBackward,
                 {fmt::format("y{}", i - 1), fmt::format("y{}", i), fmt::format("z{}", i),
                  fmt::format("d{}", i)},
                 {fmt::format("d{}", i - 1)});
    }
    return JointBound(builder.Build(), testing::FixedCost(Duration::Microseconds(2)), memory)
        .seconds();
  };
  for (const bool two : {false, true}) {
    const double in_core = bound_of(0, two, Bytes::Unlimited());
    for (const int64_t memory : {10'000, 20'000, 30'000}) {
      const double equal = bound_of(0, two, Bytes(memory));
      EXPECT_GT(equal, in_core * 1.01);
      EXPECT_NEAR(bound_of(1, two, Bytes(memory)) / equal, 1, 0.005) << two << ", " << memory;
    }
  }
}

}  // namespace
}  // namespace spillway::testing
