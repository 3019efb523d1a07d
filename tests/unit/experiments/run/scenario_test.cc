// What is named, loaded and played.

#include "experiments/run/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "experiments/run/catalogue.h"
#include "sim/core/report.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class TriesItself final : public Policy {
  Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                      const std::string&) override {
    trial(*this, device.memory);
    return {device.memory};
  }
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
    EXPECT_THAT(error.what(), StartsWith("policy 'mine': Prepare: more than 16 trial runs"));
  }
}

// Its arena is full nearly all the time, with blocks from a granule to 100 MiB: the search for
// places must not go as deep as it has choices.
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
