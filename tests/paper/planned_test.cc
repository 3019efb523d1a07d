// Tests that the allocator `planned` needs at most 1.01 times the largest sum of live bytes of the
// run in the same memory. By default some networks run. With SPILLWAY_WHOLE_ZOO set, the whole zoo
// runs, with a known gap.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/prepare.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/alloc/planned.h"
#include "sim/cost/roofline.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

bool WholeZoo() { return std::getenv("SPILLWAY_WHOLE_ZOO") != nullptr; }

std::vector<std::string> Workloads() {
  if (!WholeZoo()) {
    return {"alexnet:128", "vgg16:64", "googlenet:32", "resnet18:32"};
  }
  std::vector<std::string> workloads;
  for (const ZooEntry& entry : Zoo()) workloads.push_back(entry.name + ":32");
  return workloads;
}

class PlannedOnTheZoo : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, PlannedOnTheZoo, ::testing::ValuesIn(Workloads()));

TEST_P(PlannedOnTheZoo, NeedsOnePercentMoreThanTheBoundAtMost) {
  const Device device = LoadDevice("gtx_1080ti");
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  for (const Preset& preset : Presets()) {
    // The graph of GoogLeNet takes long, and has the same forks with each preset.
    if (!WholeZoo() && GetParam() == "googlenet:32" && preset.name != "torch") continue;
    const Trace trace = LoadTrace({GetParam(), preset.name, true});
    const bool own = preset.name == "superneurons";
    for (const PolicyRegistry::Entry& entry : registry.entries()) {
      const PolicyTraits& traits = entry.traits;
      if (!traits.tried_by_default || traits.for_inference || traits.for_recordings) continue;
      if (own && entry.name != "superneurons") continue;
      for (const PolicyChoice& policy : PolicyChoice(entry.name).Candidates()) {
        Case asked;
        asked.allocator = "planned";
        Draft run{
            Borrow(trace), device, Borrow(cost), Bytes::Unlimited(), asked.allocator.Undecided(),
            policy};
        for (const char* memory : {"unlimited", "30%"}) {
          // These policies react to free memory, so they fill whatever memory a plan leaves them.
          const bool reacts =
              entry.name == "dtr" || entry.name == "capuchin" || entry.name == "checkmate";
          if (reacts && memory != std::string_view("unlimited")) continue;
          run.memory = MemoryBudget(memory).In(run);
          const AllocationPlan plan = PlanFor(run, *asked.allocator.planned());
          const std::string what =
              fmt::format("{}, {}, {}, {}", GetParam(), preset.name, policy.name(), memory);
          // Known gaps: policies that keep memory full, on networks with forks
          // (sim/alloc/README.md).
          const int percent = WholeZoo() ? 107 : 101;
          EXPECT_LE(plan.height.count() * 100, plan.bound.count() * percent) << what;
          if (plan.height.count() * 100 > plan.bound.count() * 101) {
            fmt::print(
                "over 1.01: {:.4f}, {}\n",
                static_cast<double>(plan.height.count()) / static_cast<double>(plan.bound.count()),
                what);
          }
          const bool fits = plan.height <= run.memory;
          // A plan near the bound must also fit into the memory.
          if (!WholeZoo() && plan.height.count() * 1000 <= plan.bound.count() * 1001) {
            EXPECT_LE(plan.height, run.memory) << what;
          }
          // A plan that does not fit is computed again for less memory, which takes minutes if it
          // fails.
          if (!fits && WholeZoo()) continue;
          Draft decided = run;
          decided.arena = Arena::Planned("planned", std::make_shared<const AllocationPlan>(plan));
          if (!fits) decided = DecidePlacement(asked, run, {});
          const Report report = Predict(decided).report;
          if (!report.fits()) continue;
          EXPECT_LE(report.metrics.peak_reserved, decided.arena.plan()->height) << what;
          EXPECT_EQ(report.metrics.peak_allocated, decided.arena.plan()->bound) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::testing
