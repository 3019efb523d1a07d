// Tests of scenarios: naming, loading and playing them.

#include "experiments/run/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "experiments/run/catalogue.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class TriesItself final : public Policy {
  void Plan(PolicyContext& context) override { context.WhatIf(*this); }
};

class ScenarioTest : public ::testing::Test {
 protected:
  const Trace trace_ = LowerNetwork(BuildNetwork("constructed(2)"), {2, "torch", true});
  MachineText machine_;
};

TEST_F(ScenarioTest, TakesEverythingFromTheMachinesTexts) {
  machine_ = {"titan_x_maxwell", "100%", "first-fit", "roofline", "all:density=0.5"};
  machine_.deterministic = machine_.charge_input = true;
  machine_.iterations = 3;
  const Scenario scenario(trace_, machine_);
  const spillway::Setup& setup = scenario.setup();
  EXPECT_EQ(setup.device.name, "titan_x_maxwell");
  EXPECT_EQ(setup.memory, RoundUp(scenario.ideal().metrics.peak_reserved, setup.device.alignment));
  EXPECT_EQ(setup.allocator, "first-fit");
  EXPECT_EQ(setup.compression->density, 0.5);
  EXPECT_THAT(setup.cost->Provenance(), HasSubstr("deterministic"));
  EXPECT_TRUE(setup.options.charge_input);
  EXPECT_EQ(setup.options.iterations, 3);
  EXPECT_TRUE(scenario.Play("liveness").report.fits());
}

TEST_F(ScenarioTest, BadTextsAreUsageErrors) {
  for (std::string MachineText::*text :
       {&MachineText::device, &MachineText::memory, &MachineText::allocator, &MachineText::cost,
        &MachineText::compress}) {
    machine_ = {};
    machine_.*text = "nonsense";
    EXPECT_THROW(Scenario(trace_, machine_), UsageError);
  }
}

TEST_F(ScenarioTest, ErrorsSayWhosePolicyFailed) {
  const std::vector<PolicyMaker> makers{[] { return std::make_unique<TriesItself>(); }};
  try {
    Scenario(trace_, machine_).Play("mine", makers);
    FAIL() << "no error";
  } catch (const PolicyError& error) {
    EXPECT_THAT(error.what(), StartsWith("policy 'mine': WhatIf: more than 16 trial runs"));
  }
}

// The arena is full nearly all the time, with blocks from one granule to 100 MiB. The recursion of
// the search for places must not be as deep as the number of its choices.
TEST_F(ScenarioTest, PlansOfLittleMemoryAreFound) {
  MachineText machine;
  machine.memory = "50%";
  machine.allocator = "planned";
  const Scenario scenario(LoadWorkload("resnet50:32", {}), machine);
  const Report report = scenario.Play("superneurons").report;
  ASSERT_TRUE(report.fits());
  EXPECT_LE(report.metrics.peak_reserved.count() * 1000,
            report.metrics.peak_allocated.count() * 1001);
}

}  // namespace
}  // namespace spillway
