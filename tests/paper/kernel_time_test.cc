// Compares kernel times that papers print with the analytic model of their GPU.

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/papers.h"

namespace spillway::testing {
namespace {

double Milliseconds(const std::string& operation) {
  return testing::ReproduceOne("Tab1 " + operation + " ms").ours_exact.value();
}

// vDNN++, Table I: pooling 3 ms, 1x1 19 ms, 3x3 80 ms, 5x5 200 ms, transfer 62 ms. We read the
// times as forward and backward together, and the transfer as out and back. The link of the machine
// can move 411 MB in 31 ms, and its memory allows pooling in 3 ms.
TEST(VdnnppTableOneTest, LayersTakeWhatThePaperPrints) {
  const auto items = testing::Select("vdnnpp-Tab1");
  EXPECT_EQ(items.size(), 5u);
  for (const PaperItem& item : items) {
    const double ratio = 1 + Reproduce(item).rel_error.value();
    EXPECT_GT(ratio, 1 / 1.5) << item.value.item;
    EXPECT_LT(ratio, 1.5) << item.value.item;
  }
}

TEST(VdnnppTableOneTest, LayersStandToTheTransferAsThePaperSays) {
  const double transfer = Milliseconds("transfer");
  EXPECT_NEAR(transfer, 62, 0.5);
  EXPECT_LT(Milliseconds("POOL"), Milliseconds("1x1 CONV"));
  EXPECT_LT(Milliseconds("1x1 CONV"), transfer);
  EXPECT_GT(Milliseconds("3x3 CONV"), transfer);
  EXPECT_GT(Milliseconds("5x5 CONV"), 2 * Milliseconds("3x3 CONV"));
}

}  // namespace
}  // namespace spillway::testing
