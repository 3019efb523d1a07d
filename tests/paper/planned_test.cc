// The allocator `planned` needs at most 1.01 times the largest sum of live bytes of the run in the
// same memory: on some networks here, on the whole zoo, with a known gap, where SPILLWAY_WHOLE_ZOO
// is set.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/catalogue.h"
#include "experiments/run/resolve.h"
#include "experiments/run/simulate.h"
#include "policies/registry.h"
#include "sim/alloc/planned.h"
#include "sim/cost/roofline.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
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
    const Trace trace = LoadWorkload(GetParam(), {preset.name, true});
    const bool own = preset.name == "superneurons";
    for (const PolicyRegistry::Entry& entry : registry.entries()) {
      const PolicyTraits& traits = entry.traits;
      if (!traits.tried_by_default || traits.for_inference || traits.for_recordings) continue;
      if (own && entry.name != "superneurons") continue;
      for (const std::string& policy : OrdersOf(entry.name)) {
        const PolicyMaker make = [&] { return registry.Make(policy); };
        spillway::Setup setup{Borrow(trace), device, Borrow(cost), Bytes::Unlimited(), "planned"};
        for (const char* memory : {"unlimited", "30%"}) {
          // What leaves depends on what is free: they fill whatever memory a plan leaves them.
          const bool reacts =
              entry.name == "dtr" || entry.name == "capuchin" || entry.name == "checkmate";
          if (reacts && memory != std::string_view("unlimited")) continue;
          setup.memory = ParseMemory(memory, setup);
          const AllocationPlan plan = PlanFor(setup, make);
          const std::string what =
              fmt::format("{}, {}, {}, {}", GetParam(), preset.name, policy, memory);
          // Gaps: policies that keep memory full, on networks with forks (sim/alloc/README.md).
          const int percent = WholeZoo() ? 107 : 101;
          EXPECT_LE(plan.height.count() * 100, plan.bound.count() * percent) << what;
          if (plan.height.count() * 100 > plan.bound.count() * 101) {
            fmt::print(
                "over 1.01: {:.4f}, {}\n",
                static_cast<double>(plan.height.count()) / static_cast<double>(plan.bound.count()),
                what);
          }
          const bool fits = plan.height <= setup.memory;
          // What is near the bound is not good enough before it fits.
          if (!WholeZoo() && plan.height.count() * 1000 <= plan.bound.count() * 1001) {
            EXPECT_LE(plan.height, setup.memory) << what;
          }
          // What does not fit is planned again for less memory, which takes minutes if it misses.
          if (!fits && WholeZoo()) continue;
          spillway::Setup with_plan = setup;
          with_plan.plan = std::make_shared<const AllocationPlan>(plan);
          const spillway::Setup resolved = fits ? with_plan : ResolveAllocator(setup, make);
          const Report report = Simulate(resolved, *make()).report;
          if (!report.fits()) continue;
          EXPECT_LE(report.metrics.peak_reserved, resolved.plan->height) << what;
          EXPECT_EQ(report.metrics.peak_allocated, resolved.plan->bound) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway
