// Tests the workspaces that the u-cuDNN paper prints.

#include <gtest/gtest.h>

#include "tests/testing/papers.h"

namespace spillway::testing {
namespace {

TEST(UcudnnPaperTest, EveryPrintedNumberIsReproduced) { EXPECT_EQ(testing::Judged("ucudnn"), 9); }

}  // namespace
}  // namespace spillway::testing
