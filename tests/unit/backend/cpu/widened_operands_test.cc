// Tests of operands that are stored in bfloat16.

#include "backend/cpu/widened_operands.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "tests/testing/kernel_cases.h"

namespace spillway::testing {
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

// Returns the output of a convolution of bfloat16 operands, which it rounds.
Values ConvolveInBfloat16(const Op& op, const std::vector<std::vector<uint16_t>>& operands,
                          size_t elements) {
  std::vector<std::vector<uint16_t>> stored = operands;
  stored.emplace_back(elements);
  WidenedOperands widened;
  std::vector<std::span<std::byte>> copies;
  for (auto& values : stored)
    copies.push_back(widened.Of(std::as_writable_bytes(std::span(values))));
  const std::span inputs(copies.data(), operands.size());
  RunOp<float>(op, {}, inputs, {&copies.back(), 1}, kSeed);
  widened.Store(std::as_writable_bytes(std::span(stored.back())));
  Values y;
  for (const uint16_t bits : stored.back()) y.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
  return y;
}

// Sums are float, so a result is the nearest bfloat16 or, if the sum is near a middle, the next.
TEST(Bfloat16Test, AConvolutionRoundsOnlyItsResult) {
  const reference::Conv c{2, 6, 9, 7, 4, 3, 5, 2, 1, 1, 2, 2};
  const Op op = MakeOp(OpType::kConv2d, Phase::kForward, c.batch,
                       {{"in_channels", 6},
                        {"in_height", 9},
                        {"in_width", 7},
                        {"out_channels", 4},
                        {"out_height", static_cast<double>(c.out_height())},
                        {"out_width", static_cast<double>(c.out_width())},
                        {"kernel_h", 3},
                        {"kernel_w", 5},
                        {"stride_h", 2},
                        {"stride_w", 1},
                        {"pad_h", 1},
                        {"pad_w", 2},
                        {"groups", 2},
                        {"bias", 1}});
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::vector<uint16_t>> operands(3);
  operands[0].resize(c.batch * c.in_size());
  operands[1].resize(c.weight_size());
  operands[2].resize(c.out_channels);
  std::vector<Array> values;
  for (auto& operand : operands) {
    Array& wide = values.emplace_back();
    for (uint16_t& bits : operand) {
      bits = RoundToBfloat16(uniform(random));
      wide.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
    }
  }
  Array want(c.batch * c.out_size());
  c.ForEach([&](int x, int w, int to) { want[to] += values[0][x] * values[1][w]; });
  reference::AddBias(want, values[2], c.out_height() * c.out_width());
  const Values y = ConvolveInBfloat16(op, operands, want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(y[i], want[i], 0.501 * std::ldexp(1, std::ilogb(want[i]) - 7) + 1e-6) << i;
  }
}

}  // namespace
}  // namespace spillway::testing
