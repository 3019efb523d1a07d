#include "sim/cost/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sim/cost/recorded.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

// Hosts of 4 GPUs. A GPU sends 1 MB in 10 us to its host's GPUs and in 100 us to others.
Cluster SmallCluster() {
  Cluster cluster;
  cluster.gpus = 4;
  cluster.inside = {{100'000'000'000}, Duration::Microseconds(1)};
  cluster.outside = {{10'000'000'000}, Duration::Microseconds(5)};
  cluster.start = Duration::Microseconds(20);
  return cluster;
}

Op OpOf(const std::string& kind, double bytes, double ranks, double stride = 1) {
  Op op;
  op.name = kind + ".1";
  op.slots = {{"op", kind + " 8x8 traffic=0", 0, Bytes(0)}};
  op.attributes = {{"bytes", bytes}, {"ranks", ranks}, {"stride", stride}};
  return op;
}

double Microseconds(const Op& op) {
  return static_cast<double>(CollectiveTime(SmallCluster(), op).picoseconds()) / 1e6;
}

// 20 us + 3 steps of 1 us + 3 quarters of 8 MB at 100 GB/s
TEST(CollectiveTest, ARingInsideAHost) {
  EXPECT_NEAR(Microseconds(OpOf("all_gather", 8e6, 4)), 20 + 3 + 60, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("reduce_scatter", 8e6, 4)), 20 + 3 + 60, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("all_gather", 8e6, 2, 2)), 20 + 1 + 40, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("broadcast", 8e6, 4)), 20 + 3 + 80, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("all_gather", 8e6, 1)), 20, 1e-3);
}

// The ring crosses hosts over the cards of the group's GPUs: four, or one if each is alone.
TEST(CollectiveTest, ARingOverHosts) {
  EXPECT_NEAR(Microseconds(OpOf("all_gather", 8e6, 8)), 20 + 5 + 6 + 7e6 / 40e9 * 1e6, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("all_gather", 8e6, 2, 4)), 20 + 5 + 4e6 / 10e9 * 1e6, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("send", 1e6, 2, 4)), 20 + 5 + 100, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("send", 1e6, 2)), 20 + 1 + 10, 1e-3);
}

// Small all-reduces of many GPUs go up and down a tree: 2 x (8 x 5 + 2 x 1) us for 256 hosts.
TEST(CollectiveTest, AllReducesTakeTheFasterOfRingAndTree) {
  EXPECT_NEAR(Microseconds(OpOf("all_reduce", 0, 1024)), 20 + 2 * (8 * 5 + 2), 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("all_reduce", 8e6, 4)), 20 + 2 * (3 + 60 / 1.18), 1e-3);
  EXPECT_LT(Microseconds(OpOf("all_reduce", 8e9, 8)), 2 * Microseconds(OpOf("all_gather", 8e9, 8)));
}

TEST(CollectiveTest, ExchangesSendToOtherHostsWhatIsTheirs) {
  EXPECT_NEAR(Microseconds(OpOf("all_to_all", 8e6, 4)), 20 + 1 + 60, 1e-3);
  EXPECT_NEAR(Microseconds(OpOf("all_to_all", 8e6, 8)), 20 + 5 + 400, 1e-3);
}

TEST(CollectiveTest, MoreBytesAndMoreGpusTakeLonger) {
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "reduce"}) {
    double last = 0;
    for (const double bytes : {0.0, 1e3, 1e6, 1e9}) {
      const double time = Microseconds(OpOf(kind, bytes, 16));
      EXPECT_GE(time, last) << kind;
      EXPECT_GE(Microseconds(OpOf(kind, bytes, 64)), time) << kind;
      last = time;
    }
  }
}

TEST(CollectiveTest, RefusesBadAttributes) {
  EXPECT_THAT(
      testing::InputErrorOf([] { Microseconds(OpOf("all_gather", 8, 0)); }),
      ::testing::HasSubstr("op 'all_gather.1' (other): the attribute 'ranks' is 0, expected 1"));
  Op op = OpOf("all_gather", 8, 2);
  op.attributes.erase(op.attributes.begin());
  EXPECT_THAT(testing::InputErrorOf([&] { Microseconds(op); }),
              ::testing::HasSubstr("lacks the attribute 'bytes'"));
}

// What was recorded without a GPU and on another device has the links of the device that is asked.
TEST(CollectiveTest, RecordedStepsTakeTheDevicesLinks) {
  Op op = OpOf("all_gather", 8e6, 4);
  op.recorded = RecordedCost();
  Device device = testing::RoundDevice();
  EXPECT_EQ(RecordedCostModel({}, device, std::nullopt).Kernels(op, 0, 1)[0].time, Duration());
  device.cluster = SmallCluster();
  EXPECT_EQ(RecordedCostModel({}, device, std::nullopt).Kernels(op, 0, 1)[0].time,
            Duration::Microseconds(83));
}

}  // namespace
}  // namespace spillway::testing
