#include "experiments/output/peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PeakHolder Holder(const std::string& layer, const std::string& block, int64_t mib,
                  const std::string& kind = "activation") {
  return {layer + ".y", kind, Bytes::MiB(mib), layer, block};
}

MemoryPeak Peak() {
  MemoryPeak peak{"op",
                  Bytes::MiB(109),
                  {Holder("log_softmax.9", "", 40), Holder("exp_avg.12", "", 30, "optimizer_state"),
                   Holder("h.0/mul.1", "h.0", 10), Holder("h.1/mul.3", "h.1", 10),
                   Holder("h.0/mul.2", "h.0", 8), Holder("h.1/add.4", "h.1", 6),
                   Holder("g.0/mul.5", "g.0", 5)}};
  return peak;
}

std::vector<std::string> TextOf(const std::vector<PeakSum>& sums) {
  std::vector<std::string> lines;
  for (const PeakSum& sum : sums) {
    lines.push_back(sum.name + sum.kind + " " + std::to_string(sum.tensors) + " " +
                    FormatBytes(sum.requested));
  }
  return lines;
}

TEST(PeakTest, SumsAreByBlock) {
  EXPECT_THAT(TextOf(BlockSums(Peak())),
              ElementsAre(" 1 40 MiB", "optimizer_state 1 30 MiB", "h.0 2 18 MiB", "h.1 2 16 MiB",
                          "g.0 1 5 MiB"));
}

// Numbers of operators and of blocks do not tell layers apart.
TEST(PeakTest, SumsAreByAlikeLayers) {
  EXPECT_THAT(TextOf(LayerSums(Peak())),
              ElementsAre("log_softmax 1 40 MiB", "optimizer_state 1 30 MiB", "h.*/mul 3 28 MiB",
                          "h.*/add 1 6 MiB", "g.*/mul 1 5 MiB"));
}

TEST(PeakTest, TheTextHasBlocksThenLayersThenTensors) {
  const std::string text = FormatPeakSums(Peak(), 2);
  EXPECT_THAT(text, HasSubstr("by block:\n"
                              "      40 MiB  layers of no block\n"
                              "      34 MiB  h.*: 2 blocks of 18 MiB to 16 MiB\n"
                              "      30 MiB  optimizer_state\n"
                              "       5 MiB  g.*\n"
                              "by layer:\n"
                              "      40 MiB  log_softmax\n"
                              "      28 MiB  h.*/mul (3 tensors)\n"
                              "by tensor:\n"
                              "      40 MiB  log_softmax.9.y (activation)\n"
                              "      30 MiB  exp_avg.12.y (optimizer_state)\n"));
}

TEST(PeakTest, WithoutBlocksThereAreNoSumsByBlock) {
  const MemoryPeak peak{"op", Bytes::MiB(1), {Holder("conv1", "", 1)}};
  EXPECT_THAT(FormatPeakSums(peak, 2), Not(HasSubstr("by block")));
}

}  // namespace
}  // namespace spillway::testing
