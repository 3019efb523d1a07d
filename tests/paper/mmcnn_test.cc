// Tests the schedules and memory that the mmCNN paper prints.

#include <gtest/gtest.h>

#include "tests/testing/papers.h"

namespace spillway::testing {
namespace {

TEST(MmcnnPaperTest, EveryPrintedNumberIsReproduced) {
  EXPECT_EQ(Judged("mmcnn-Tab3"), 344);
  EXPECT_EQ(Judged("mmcnn-Tab4"), 100);
  EXPECT_EQ(Judged("mmcnn-Tab5"), 93);
  EXPECT_EQ(Judged("mmcnn-Tab6"), 172);
  EXPECT_EQ(Judged("mmcnn-Tab2"), 9);
}

// The paper does not have these limits and networks. A network with branches has no such table.
TEST(MmcnnPaperTest, OtherLimitsAndNetworksAreComputedToo) {
  const auto ours = [](const std::string& item) { return Reproduce(Select(item).at(0)).ours; };
  EXPECT_LE(ours("Tab4 AlexNet layer 17 @20 MB").value(), 20);
  EXPECT_GT(ours("Tab6 vgg16 layer 37 @20 MB").value(), 0);
  EXPECT_FALSE(ours("Tab6 resnet50 layer 4 @5 MB"));
  EXPECT_FALSE(ours("Tab4 AlexNet layer 22 @20 MB"));
}

// Fig. 9 is a plot: transfers and time grow as memory shrinks.
TEST(MmcnnPaperTest, LessMemoryTakesMoreTransfersAndTime) {
  for (const std::string network : {"AlexNet", "VGG-S", "VGG-D19"}) {
    double transfers = 0, time = 0;
    for (const char* limit : {"200", "50", "5"}) {
      const auto ours = [&](const char* what) {
        const std::string item = "Fig9 " + network + " @" + limit + " MB " + what;
        return Reproduce(Select(item).at(0)).ours_exact.value();
      };
      EXPECT_GT(ours("transfers"), transfers) << network << limit;
      EXPECT_GT(ours("ms"), time) << network << limit;
      transfers = ours("transfers");
      time = ours("ms");
    }
  }
}

}  // namespace
}  // namespace spillway::testing
