// Tests of the integer program against every schedule of small programs, and against the joint
// planner.

#include "policies/parts/rematerialization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

// Returns `forward` units that can be recomputed, each read by the next and some also by one
// further on. They are followed by as many units that cannot be recomputed. Each of these reads its
// counterpart and the unit before it.
RematerializationProblem Random(std::mt19937_64& random, size_t forward) {
  RematerializationProblem problem(2 * forward);
  for (size_t i = 0; i < forward; ++i) {
    RematerializedUnit& unit = problem[i];
    unit.again = true;
    unit.time = Duration::Nanoseconds(static_cast<int64_t>(1 + random() % 20));
    unit.value = Bytes(static_cast<int64_t>(10 + random() % 50));
    unit.extra = Bytes(static_cast<int64_t>(random() % 20));
    unit.fixed = Bytes(static_cast<int64_t>(10 + random() % 10)) + unit.extra;
    if (i > 1 && random() % 4 == 0) unit.reads.push_back(i - 2);
    if (i > 0) unit.reads.push_back(i - 1);
  }
  for (size_t i = forward; i < problem.size(); ++i) {
    problem[i].time = Duration::Nanoseconds(10);
    problem[i].fixed = Bytes(static_cast<int64_t>(20 + random() % 40));
    const size_t counterpart = problem.size() - 1 - i;
    if (counterpart > 0) problem[i].reads.push_back(counterpart - 1);
    problem[i].reads.push_back(counterpart);
  }
  return problem;
}

// Returns the shortest time of all schedules that fit the budget, or nullopt if none fits. It tries
// every set of kept values for every stage.
std::optional<Duration> Shortest(const RematerializationProblem& problem, Bytes budget) {
  const size_t forward = problem.size() / 2;
  std::vector<size_t> last(forward), last_of_forward(forward);
  for (size_t i = 0; i < problem.size(); ++i) {
    for (const size_t read : problem[i].reads) (i < forward ? last_of_forward : last)[read] = i;
  }
  Retention kept(problem.size() + 1, std::vector<bool>(problem.size()));
  std::optional<Duration> shortest;
  const auto from = [&](const auto& self, size_t stage) -> void {
    if (stage == problem.size()) {
      for (size_t before = 0; before < forward; ++before) {
        for (size_t i = 0; i < before; ++i) {
          kept[before][i] = kept[forward][i] || last_of_forward[i] >= before;
        }
      }
      const auto cost = CostOf(problem, kept);
      if (cost && cost->peak <= budget && (!shortest || cost->time < *shortest)) {
        shortest = cost->time;
      }
      return;
    }
    for (uint32_t set = 0; set < 1u << forward; ++set) {
      bool wanted = true;
      for (size_t i = 0; i < forward; ++i) {
        kept[stage][i] = (set >> i) % 2 == 1;
        wanted = wanted && (!kept[stage][i] || last[i] >= stage);
      }
      if (wanted) self(self, stage + 1);
    }
  };
  from(from, forward);
  return shortest;
}

TEST(RematerializationTest, SearchFindsTheBestOfAllSchedules) {
  std::mt19937_64 random(7);
  int recomputed = 0, infeasible = 0, rounded_worse = 0;
  for (int round = 0; round < 60; ++round) {
    const RematerializationProblem problem = Random(random, 3 + random() % 2);
    const Bytes budget(static_cast<int64_t>(120 + random() % 100));
    const std::optional<Duration> shortest = Shortest(problem, budget);
    const auto found = Rematerialize(problem, budget, 10000);
    ASSERT_EQ(found.has_value(), shortest.has_value()) << round;
    infeasible += !found;
    if (!found) continue;
    const auto cost = CostOf(problem, *found);
    ASSERT_TRUE(cost);
    EXPECT_LE(cost->peak, budget) << round;
    EXPECT_EQ(cost->time, *shortest) << round;
    Duration once;
    for (const RematerializedUnit& unit : problem) once += unit.time;
    recomputed += cost->time > once;
    const auto rounded = Rematerialize(problem, budget, 0);
    rounded_worse += !rounded || CostOf(problem, *rounded)->time > cost->time;
    EXPECT_TRUE(!rounded || CostOf(problem, *rounded)->peak <= budget) << round;
  }
  EXPECT_GT(recomputed, 10);
  EXPECT_GT(infeasible, 0);
  EXPECT_GT(rounded_worse, 0);
}

TEST(RematerializationTest, ThreadsFindWhatOneFinds) {
  constexpr size_t kProblems = 160, kThreads = 4;
  std::mt19937_64 random(8);
  std::vector<RematerializationProblem> problems;
  std::vector<std::optional<Retention>> alone;
  for (size_t i = 0; i < kProblems; ++i) {
    problems.push_back(Random(random, 4));
    alone.push_back(Rematerialize(problems[i], Bytes(180), 10000));
  }
  std::vector<std::optional<Retention>> together(kProblems);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < kProblems; i += kThreads) {
        together[i] = Rematerialize(problems[i], Bytes(180), 10000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

// Values computed by hand for three units of 10, 20 and 30 ns whose values have 40 B each.
TEST(RematerializationTest, CountsWhatIsThereWhileUnitsRunAgain) {
  RematerializationProblem problem(5);
  for (size_t i = 0; i < 3; ++i) {
    problem[i] = {Duration::Nanoseconds(10 * (static_cast<int64_t>(i) + 1)),
                  true,
                  Bytes(40),
                  Bytes(5),
                  Bytes(10),
                  {}};
    if (i > 0) problem[i].reads = {i - 1};
  }
  problem[3] = {Duration::Nanoseconds(1), false, Bytes(0), Bytes(0), Bytes(10), {2}};
  problem[4] = {Duration::Nanoseconds(1), false, Bytes(0), Bytes(0), Bytes(10), {1}};
  Retention kept(6, std::vector<bool>(5));
  kept[1][0] = kept[2][1] = kept[3][2] = true;
  // Unit 4 needs the second value again, so the first two units run again while 10 B are in use.
  const auto cost = CostOf(problem, kept);
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->time, Duration::Nanoseconds(60 + 2 + 30));
  EXPECT_EQ(cost->peak, Bytes(10 + 40 + 40 + 5));
  kept[3][1] = kept[4][1] = true;  // the second value stays, so nothing runs again
  const auto kept_cost = CostOf(problem, kept);
  ASSERT_TRUE(kept_cost);
  EXPECT_EQ(kept_cost->time, Duration::Nanoseconds(60 + 2));
  EXPECT_EQ(kept_cost->peak, Bytes(10 + 40 + 40));
  kept[1][0] = false;  // no unit may run again before backward begins
  EXPECT_FALSE(CostOf(problem, kept));
}

TEST(RematerializationTest, FindsAScheduleInTheBytesOfTheFullestUnitAndNotInLess) {
  RematerializationProblem problem(2);
  problem[0] = {Duration::Nanoseconds(1), true, Bytes(40), Bytes(0), Bytes(10), {}};
  problem[1] = {Duration::Nanoseconds(1), false, Bytes(0), Bytes(0), Bytes(20), {0}};
  EXPECT_TRUE(Rematerialize(problem, Bytes(60), 0));
  EXPECT_FALSE(Rematerialize(problem, Bytes(59), 0));
}

// In backward, every other op can run again, so that no two neighbours are alike. With two units
// left, the one that cannot run again needs all storages at once.
TEST(RematerializationTest, NeighboursThatAreNotAlikeBecomeOneUnitToo) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const bool forward = trace.ops[i].phase == Phase::kForward;
    trace.ops[i].recomputable = forward ? i % 4 != 1 : i % 2 == 0;
  }
  Draft setup{Borrow(trace), device, Borrow(cost), Bytes::Unlimited()};
  const Bytes peak = Predict(Ideal(setup)).report.metrics.peak_reserved;
  setup.memory = MemoryAt(80, LayerBound(trace, device.alignment), peak, device.alignment);
  EXPECT_TRUE(testing::Simulate(setup, *registry.Make("checkmate")).report.fits());
  EXPECT_FALSE(testing::Simulate(setup, *registry.Make("checkmate:units=2")).report.fits());
}

// Without copies and choices of kernels, the joint planner is as good as the optimum of the
// program. Both evict some storages, but not all.
TEST(RematerializationTest, JointWithoutCopiesIsAsGoodOnSmallNetworks) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  int fitted = 0, recomputed = 0;
  for (const auto network : {testing::Chain, testing::Residual, testing::Dense}) {
    const Trace trace = LowerNetwork(network(), {8, "torch", true});
    Draft setup{Borrow(trace), device, Borrow(cost), Bytes::Unlimited()};
    const Bytes peak = Predict(Ideal(setup)).report.metrics.peak_reserved;
    for (const double percent : {20, 40, 60, 80, 100}) {
      setup.memory = MemoryAt(percent, LayerBound(trace, device.alignment), peak, device.alignment);
      const Report optimal = testing::Simulate(setup, *registry.Make("checkmate")).report;
      if (!optimal.fits()) continue;
      EXPECT_TRUE(Check(trace, optimal).empty()) << trace.name << " " << percent;
      EXPECT_EQ(optimal.metrics.offloaded, Bytes(0));
      const Report joint =
          testing::Simulate(setup, *registry.Make("joint:effort=300,offload=false,kernels=false"))
              .report;
      ASSERT_TRUE(joint.fits());
      EXPECT_LE(joint.metrics.iteration * 100, optimal.metrics.iteration * 101)
          << trace.name << " " << percent;
      recomputed += optimal.metrics.recomputed_ops > 0;
      ++fitted;
    }
  }
  EXPECT_GT(fitted, 7);
  EXPECT_GT(recomputed, 4);
}

}  // namespace
}  // namespace spillway::testing
