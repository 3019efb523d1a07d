// Tests of operands that are stored in bfloat16.

#include "backend/cpu/widened_operands.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace spillway {
namespace {

TEST(Bfloat16Test, ValuesAreRoundedToTheNearestAndToEven) {
  const auto rounded = [](uint32_t bits) { return RoundToBfloat16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3f800000), 0x3f80);  // 1
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);  // just below the middle
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // the middle: down to even
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // the middle: up to even
  EXPECT_EQ(rounded(0xbf808001), 0xbf81);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // the largest float is beyond the largest bfloat16
  EXPECT_EQ(RoundToBfloat16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_GT(rounded(0x7f800001) & 0x7fff, 0x7f80);  // NaN stays NaN
  EXPECT_GT(rounded(0xffffffff) & 0x7fff, 0x7f80);
}

TEST(Bfloat16Test, AnOperandThatIsUpdatedInPlaceHasOneCopy) {
  std::array<uint16_t, 2> stored{0x3f80, 0xc000};  // 1 and -2
  const auto bytes = std::as_writable_bytes(std::span(stored));
  WidenedOperands widened;
  const std::span<std::byte> copy = widened.Of(bytes);
  auto* const values = reinterpret_cast<float*>(copy.data());
  ASSERT_EQ(copy.size(), 8);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], -2);
  EXPECT_EQ(widened.Of(bytes).data(), copy.data());
  values[0] = 1 + 0x1p-7f;
  values[1] = 1 + 0x1p-9f;  // nearer to 1 than to the next bfloat16
  widened.Store(bytes);
  EXPECT_EQ(stored[0], 0x3f81);
  EXPECT_EQ(stored[1], 0x3f80);
}

}  // namespace
}  // namespace spillway
