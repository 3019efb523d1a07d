// Tests Tables 4 and 5 of SuperNeurons (Wang et al., PPoPP 2018): the order of the frameworks by
// depth and by width is the paper's.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/papers.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

TEST(LimitItemsTest, AreAskedForByTheirNames) {
  const auto table4 = Select("superneurons-Tab4");
  const auto table5 = Select("superneurons-Tab5");
  EXPECT_EQ(table4.size(), 5u + 1);
  EXPECT_EQ(table5.size(), 6u * (5 + 1) - 2);  // two cells are "N/A"
  EXPECT_EQ(Select("superneurons-limits").size(), table4.size() + table5.size());
  EXPECT_EQ(table4[0].value.item, "Tab4 Caffe");
  EXPECT_EQ(table4[0].value.printed, 148);
  const auto one = Select("Tab5 ResNet152 TensorFlow");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].value.printed, 48);
  EXPECT_EQ(one[0].value.workload, "resnet152@227");
  for (const PaperItem& item : Select("Tab4")) EXPECT_EQ(item.value.paper, "vdnnpp");
  for (const char* other :
       {"superneurons-", "superneurons-Tab6", "Tab5", "limits", "Tab5 InceptionV4 Torch",
        "Tab5 InceptionV4 Torchy", "Tab5 VGG16(64) Caffe"}) {
    EXPECT_THROW(Select(other), UsageError) << other;
  }
}

TEST(LimitItemsTest, FrameworksStandInThePapersOrder) {
  int judged = 0;
  for (const PaperItem& item : Select("superneurons-limits")) {
    if (!item.value.item.ends_with(" order") || item.value.evidence != "=") continue;
    const Reproduction result = Reproduce(item);
    EXPECT_TRUE(result.passes) << item.value.item << ": " << result.ours.value_or(-1);
    judged += result.judged ? 1 : 0;
  }
  EXPECT_EQ(judged, 6);
}

}  // namespace
}  // namespace spillway::testing
