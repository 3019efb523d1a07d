// Tests the schedules and memory that the mmCNN paper prints, and the workspaces that u-cuDNN
// prints.

#include <gtest/gtest.h>

#include "tests/testing/papers.h"

namespace spillway {
namespace {

using testing::Select;

// Returns the number of judged items of a request. Each judged item has to agree.
int Judged(const std::string& request) {
  int judged = 0;
  for (const PaperItem& item : Select(request)) {
    const Reproduction result = Reproduce(item);
    EXPECT_TRUE(result.ours) << item.value.item;
    EXPECT_TRUE(result.passes || !result.judged)
        << item.value.item << ": " << result.ours_exact.value_or(0);
    judged += result.judged ? 1 : 0;
  }
  return judged;
}

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

TEST(UcudnnPaperTest, EveryPrintedNumberIsReproduced) { EXPECT_EQ(Judged("ucudnn"), 9); }

}  // namespace
}  // namespace spillway
