// Tests the numbers that the vDNN paper prints, and its claims, on the model of its GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/papers.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

TEST(VdnnPaperTest, EveryPrintedNumberIsReproduced) {
  int judged = 0;
  for (const PaperItem& item : Select("vdnn")) {
    const Reproduction result = Reproduce(item);
    ASSERT_TRUE(result.ours) << item.value.item;
    EXPECT_TRUE(result.passes) << item.value.item << ": " << *result.ours_exact;
    judged += result.judged ? 1 : 0;
  }
  EXPECT_EQ(judged, 4);
}

TEST(VdnnPaperTest, OtherBatchesAreComputedToo) {
  const auto selected = Select("base VGG-216(32) GB");
  ASSERT_EQ(selected.size(), 1u);
  EXPECT_EQ(selected[0].value.workload, "vgg216:32");
  const Reproduction result = Reproduce(selected[0]);
  EXPECT_FALSE(result.judged);
  EXPECT_GT(*result.ours, 20);
  EXPECT_THROW(Select("base VGG-17(32) GB"), UsageError);
  EXPECT_THROW(Select("nonsense"), UsageError);
}

TEST(VdnnPaperTest, ItemsOfOtherSystemsAreListedWithoutAnAnswer) {
  const Reproduction result = Reproduce({{"nobody", "Tab1", "vgg16:64", "MB", 1, 0, "="}});
  EXPECT_FALSE(result.ours);
  EXPECT_FALSE(result.judged);
}

class TitanXTest : public ::testing::Test {
 protected:
  TitanXTest() : device_(LoadDevice("titan_x_maxwell")), cost_(device_) {
    RegisterBuiltinPolicies(registry_);
  }

  Report Run(const std::string& workload, const std::string& policy) const {
    const Trace trace = LoadTrace({workload, "vdnn", true});
    const Report report = testing::Simulate({Borrow(trace), device_, Borrow(cost_), device_.memory},
                                            *registry_.Make(policy))
                              .report;
    EXPECT_THAT(Check(trace, report), IsEmpty()) << workload << " " << policy;
    return report;
  }

  Device device_;
  RooflineCostModel cost_;
  PolicyRegistry registry_;
};

// Section V-A: the baseline cannot train these networks, dynamic vDNN can.
TEST_F(TitanXTest, DynTrainsWhatTheBaselineCannot) {
  for (const char* workload : {"vgg19:128", "vgg19:256"}) {
    EXPECT_FALSE(Run(workload, "network-wide:algo=performance").fits()) << workload;
    EXPECT_TRUE(Run(workload, "vdnn-dyn").fits()) << workload;
  }
  EXPECT_TRUE(Run("vgg19:128", "network-wide:algo=memory").fits());  // section V-D
}

TEST_F(TitanXTest, DynIsNeverSlowerThanTheLeastMemory) {
  for (const char* workload : {"alexnet:128", "overfeat:128", "googlenet:128", "vgg19:64",
                               "vgg19:128", "vgg19:256", "vgg116:32"}) {
    const Report dyn = Run(workload, "vdnn-dyn");
    const Report all = Run(workload, "vdnn-all:algo=memory");
    ASSERT_TRUE(dyn.fits() && all.fits()) << workload;
    EXPECT_LE(dyn.metrics.iteration, all.metrics.iteration) << workload;
  }
}

// Section V-C: dynamic vDNN does not slow down networks that fit.
TEST_F(TitanXTest, DynOffloadsNothingWhereTheNetworkFits) {
  for (const char* workload : {"alexnet:128", "overfeat:128", "googlenet:128", "vgg19:64"}) {
    EXPECT_EQ(Run(workload, "vdnn-dyn").metrics.offloaded, Bytes(0)) << workload;
  }
}

}  // namespace
}  // namespace spillway::testing
