// No built-in policy is faster than `joint` in the same memory, and in the geometric mean at 30 %
// the fastest of them is a tenth slower: on some networks here, on the whole zoo where
// SPILLWAY_WHOLE_ZOO is set. What it takes on recorded networks in little memory, and where an
// allocator makes iterations differ.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/catalogue.h"
#include "experiments/run/scenario.h"
#include "policies/registry.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

bool WholeZoo() { return std::getenv("SPILLWAY_WHOLE_ZOO") != nullptr; }

std::vector<std::string> Workloads() {
  if (!WholeZoo()) return {"alexnet:32", "googlenet:16", "resnet18:16"};
  std::vector<std::string> workloads;
  for (const ZooEntry& entry : Zoo()) workloads.push_back(entry.name + ":32");
  return workloads;
}

// nullopt: it does not fit.
std::optional<Duration> IterationOf(const Scenario& scenario, const std::string& policy) {
  const Report report = scenario.Play(policy).report;
  return report.fits() ? std::optional(report.metrics.iteration) : std::nullopt;
}

TEST(JointOnTheZoo, IsNeverSlowerThanAnotherPolicyInTheSameMemory) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  double logarithms = 0;
  int compared = 0;
  for (const std::string& workload : Workloads()) {
    const Scenario unlimited(LoadWorkload(workload, {"torch", true}), MachineText());
    for (const char* memory : {"10%", "30%", "50%", "70%"}) {
      const Scenario scenario = unlimited.WithMemory(memory);
      const auto joint = IterationOf(scenario, "joint:effort=quick");
      std::optional<Duration> fastest;
      for (const PolicyRegistry::Entry& entry : registry.entries()) {
        if (!entry.traits.tried_by_default || entry.traits.for_recordings) continue;
        const auto other = IterationOf(scenario, entry.name);
        if (!other) continue;
        ASSERT_TRUE(joint) << entry.name << " fits " << workload << " at " << memory;
        EXPECT_LE(*joint, *other) << entry.name << ", " << workload << " at " << memory;
        fastest = std::min(*other, fastest.value_or(*other));
      }
      if (!fastest || memory != std::string("30%")) continue;
      logarithms += std::log(fastest->milliseconds() / joint->milliseconds());
      ++compared;
    }
  }
  ASSERT_GT(compared, 0);
  const double faster = std::exp(logarithms / compared);
  fmt::print("at 30 % the fastest other takes {:.3f} times as long\n", faster);
  EXPECT_GE(faster, 1.1);
}

// In hardly any room it takes all of the search: that what leaves lies apart, and beginnings in a
// little less memory on ResNet-50; on DenseNet-40 that plans go on being scheduled as they were.
TEST(JointOnRecordings, TakesLittleLongerThanInCore) {
  struct Case {
    std::string workload, memory, policy;
    double most;  // times in core
  };
  std::vector<Case> cases{{"resnet50:64", "1100MiB", "joint", 1.185},
                          {"densenet40:256", "10%", "joint:effort=1000", 1.45}};
  if (WholeZoo()) {
    for (const auto& [memory, most] :
         {std::pair("3276MiB", 1.03), {"2608MiB", 1.06}, {"1804MiB", 1.09}, {"1384MiB", 1.13}}) {
      cases.push_back({"resnet50:64", memory, "joint", most});
    }
  }
  for (const auto& [workload, memory, policy, most] : cases) {
    const Scenario unlimited(LoadWorkload(workload, {"torch", true}), MachineText());
    const double in_core = IterationOf(unlimited, "liveness")->milliseconds();
    const auto joint = IterationOf(unlimited.WithMemory(memory), policy);
    ASSERT_TRUE(joint) << workload << " in " << memory;
    EXPECT_LE(joint->milliseconds() / in_core, most) << workload << " in " << memory;
  }
}

// Where segments go back and forth in each iteration, the first one says little of the others.
TEST(JointOnPytorch, PlansAreJudgedByTheirSteadyIterations) {
  const Trace trace = LoadWorkload("resnet18:16", {"torch", true});
  const auto iteration = [&](const std::string& allocator) {
    MachineText machine;
    machine.memory = "10%";
    machine.allocator = allocator;
    return IterationOf(Scenario(trace, machine), "joint:effort=quick").value();
  };
  EXPECT_LE(iteration("pytorch").milliseconds(), iteration("best-fit").milliseconds() * 1.1);
}

}  // namespace
}  // namespace spillway
