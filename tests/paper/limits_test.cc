// Tables 4 and 5 of SuperNeurons (Wang et al., PPoPP 2018): the frameworks go as deep and as wide
// in the paper's order.

#include <gtest/gtest.h>

#include "experiments/reproduce/limits.h"
#include "experiments/reproduce/reproduce.h"

namespace spillway {
namespace {

TEST(LimitItemsTest, AreWhatThePaperPrints) {
  const auto table4 = SelectLimitValues("superneurons-Tab4");
  const auto table5 = SelectLimitValues("superneurons-Tab5");
  EXPECT_EQ(table4.size(), 5u + 1);
  EXPECT_EQ(table5.size(), 6u * (5 + 1) - 2);  // "N/A" twice
  EXPECT_EQ(SelectLimitValues("superneurons-limits").size(), table4.size() + table5.size());
  EXPECT_EQ(table4[0].item, "Tab4 Caffe");
  EXPECT_EQ(table4[0].printed, "148");
  const auto one = SelectLimitValues("Tab5 ResNet152 TensorFlow");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].printed, "48");
  EXPECT_EQ(one[0].workload, "resnet152@227");
  for (const char* other : {"superneurons", "superneurons-", "superneurons-Tab1", "Tab5", "Tab4",
                            "Tab5 InceptionV4 Torchy", "Tab5 VGG16(64) all(m) aggregate"}) {
    EXPECT_TRUE(SelectLimitValues(other).empty()) << other;
    EXPECT_FALSE(ParseLimitItem(other)) << other;
  }
  for (const PaperValue& value : SelectLimitValues("superneurons-limits")) {
    const auto item = ParseLimitItem(value.item);
    ASSERT_TRUE(item) << value.item;
    EXPECT_EQ(item->workload, value.workload);
    EXPECT_EQ(item->unit, value.unit);
  }
}

TEST(LimitItemsTest, FrameworksStandInThePapersOrder) {
  int judged = 0;
  for (const PaperValue& value : SelectLimitValues("superneurons-limits")) {
    if (!value.item.ends_with(" order") || value.evidence != "=") continue;
    const Reproduction result = Reproduce(value);
    EXPECT_TRUE(result.passes) << value.item << ": " << result.ours.value_or(-1);
    judged += result.judged ? 1 : 0;
  }
  EXPECT_EQ(judged, 6);
}

}  // namespace
}  // namespace spillway
