#include "policies/mmcnn/slice_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace spillway::testing {
namespace {

// With a limit of 10, the image and the first layer form one segment, the pool and the second layer
// the next.
//   layer   maps  weights   step
//   image    2              the 6 weights of conv fit beside the largest map, in one part
//   conv     4      6       runs whole
//   pool     3              7 are free: the 20 weights of linear come in three parts, from here on
//   linear   3     20       runs in three parts
TEST(MmcnnScheduleTest, PrefetchesWeightsWhereTheyFitInFewParts) {
  const std::vector<MmcnnLayer> layers{{2, 0}, {4, 6}, {3, 0}, {3, 20}};
  const std::vector<MmcnnStep> steps = ScheduleMmcnn(layers, 10);
  EXPECT_EQ(steps[0].prefetched, 1);
  EXPECT_EQ(steps[0].memory, 8);
  EXPECT_EQ(steps[1].parts, 1);
  EXPECT_EQ(steps[1].memory, 4);
  EXPECT_EQ(steps[2].prefetched, 3);
  EXPECT_NEAR(steps[2].memory, 3 + 20.0 / 3, 1e-12);
  EXPECT_EQ(steps[3].parts, 3);
  EXPECT_EQ(steps[3].prefetched, 0);
}

// With a limit of 4, 20 weights would come in 20 parts, so the layer loads them itself. A map of 6
// is split in two.
TEST(MmcnnScheduleTest, LoadsWeightsItselfWhereTheyWouldTakeTooManyParts) {
  const std::vector<MmcnnStep> steps = ScheduleMmcnn(std::vector<MmcnnLayer>{{6, 0}, {3, 20}}, 4);
  EXPECT_EQ(steps[0].parts, 2);
  EXPECT_EQ(steps[0].prefetched, 0);
  EXPECT_EQ(steps[0].memory, 3);
  EXPECT_EQ(steps[1].parts, 20);
  EXPECT_EQ(steps[1].memory, 4);
  EXPECT_EQ(ScheduleMmcnn(std::vector<MmcnnLayer>{{6, 0}, {3, 20}}, 4, 20)[0].prefetched, 20);
}

TEST(MmcnnScheduleTest, LayersAfterTheLastWeightsAreSplitToo) {
  const std::vector<MmcnnStep> steps =
      ScheduleMmcnn(std::vector<MmcnnLayer>{{1, 1}, {9, 0}, {2, 0}}, 4);
  EXPECT_EQ(steps[1].parts, 3);
  EXPECT_EQ(steps[1].prefetched, 0);
  EXPECT_TRUE(ScheduleMmcnn({}, 4).empty());
}

// For random layers, no step exceeds the limit, and no more steps prefetch than layers have
// weights.
TEST(MmcnnScheduleTest, StaysWithinTheLimit) {
  std::mt19937 random(7);
  const auto number = [&](int most) { return static_cast<double>(random() % most) / 7; };
  for (int round = 0; round < 2000; ++round) {
    std::vector<MmcnnLayer> layers(1 + random() % 12);
    for (MmcnnLayer& layer : layers) layer = {number(300) + 0.01, random() % 2 ? number(900) : 0};
    const double limit = number(200) + 0.5;
    const std::vector<MmcnnStep> steps = ScheduleMmcnn(layers, limit);
    double charged = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      const double maps = layers[i].maps / std::ceil(layers[i].maps / limit);
      EXPECT_LE(steps[i].memory, limit * (1 + 1e-12));
      EXPECT_GE(steps[i].memory, std::min(maps, steps[i].memory));
      EXPECT_GE(steps[i].parts, 1);
      EXPECT_LE(steps[i].prefetched, 5);
      charged += steps[i].prefetched > 0 ? 1 : 0;
    }
    EXPECT_LE(charged, std::ranges::count_if(layers, [](const auto& l) { return l.weights > 0; }));
  }
}

}  // namespace
}  // namespace spillway::testing
