#include "experiments/tools/limit/limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "experiments/run/device_specification.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Finds the limit for the given set of fitting values. Fails if the search tries a value twice.
Limit Find(const std::set<int64_t>& fitting, int64_t most, int64_t scan) {
  std::set<int64_t> tried;
  const Limit limit = FindLimit(most, scan, [&](int64_t value) {
    EXPECT_TRUE(tried.insert(value).second) << value << " was tried twice";
    EXPECT_TRUE(value >= 1 && value <= most) << value;
    return fitting.contains(value);
  });
  EXPECT_EQ(limit.trials, static_cast<int>(tried.size()));
  // The proof: every value above the limit up to `scanned_to` was tried and does not fit.
  for (int64_t value = limit.largest + 1; value <= limit.scanned_to; ++value) {
    EXPECT_TRUE(tried.contains(value) && !fitting.contains(value)) << value;
  }
  EXPECT_TRUE(limit.largest == 0 || fitting.contains(limit.largest));
  return limit;
}

std::set<int64_t> UpTo(int64_t last) {
  std::set<int64_t> values;
  for (int64_t value = 1; value <= last; ++value) values.insert(value);
  return values;
}

TEST(LimitTest, FindsEveryLimit) {
  for (int64_t largest = 0; largest <= 70; ++largest) {
    const Limit limit = Find(UpTo(largest), 70, 3);
    EXPECT_EQ(limit.largest, largest);
    EXPECT_EQ(limit.scanned_to, std::min<int64_t>(largest + 3, 70));
    EXPECT_TRUE(limit.monotone());
  }
}

TEST(LimitTest, TakesFewTrials) {
  const Limit limit = Find(UpTo(40'000), 65'536, 16);
  EXPECT_EQ(limit.largest, 40'000);
  EXPECT_LE(limit.trials, 16 + 15 + 16);
}

// value   1 2 3 4 5 6 7 8 9 10 11 12 13 14
// fits    x x x . . x . x .  .  .  .  .  x
// A scan of 3 finds 6 from 3 and 8 from 6, but does not find 14 from 8.
TEST(LimitTest, GoesOnFromWhatFitsAboveAMisfit) {
  const std::set<int64_t> fitting{1, 2, 3, 6, 8, 14};
  const Limit limit = Find(fitting, 100, 3);
  EXPECT_EQ(limit.largest, 8);
  EXPECT_EQ(limit.scanned_to, 11);
  EXPECT_FALSE(limit.monotone());
  EXPECT_THAT(limit.misfits, ElementsAre(4, 5, 7, 9, 10, 11));
  EXPECT_EQ(Find(fitting, 100, 6).largest, 14);
  // The first value tried does not fit.
  EXPECT_EQ(Find({2}, 100, 3).largest, 2);
  EXPECT_FALSE(Find({2}, 100, 3).monotone());
}

// Above a hole, the search does not go through a wide range of fitting values one by one.
TEST(LimitTest, GrowsFastAboveAHole) {
  std::set<int64_t> fitting = UpTo(30'000);
  fitting.erase(16);
  fitting.erase(15);
  const Limit limit = Find(fitting, 65'536, 4);
  EXPECT_EQ(limit.largest, 30'000);
  EXPECT_FALSE(limit.monotone());
  EXPECT_LE(limit.trials, 60);
}

TEST(WorkloadFamilyTest, VariesTheBatch) {
  const WorkloadFamily family = WorkloadFamily::OfBatches("vgg16@227");
  EXPECT_EQ(family.At(48).Name(), "vgg16@227:48");
  EXPECT_EQ(family.most(), 65'536);
  EXPECT_EQ(family.quantity(), LimitQuantity::kBatch);
  EXPECT_EQ(ResNetDepth(family.At(1).network), std::nullopt);
  for (const char* bad : {"vgg", "vgg16:32", "", "resnet(6,32,n3,6)", "vgg16@0"}) {
    EXPECT_THROW(WorkloadFamily::OfBatches(bad), UsageError) << bad;
  }
}

TEST(WorkloadFamilyTest, VariesTheNumberThatHasAName) {
  const WorkloadFamily resnet = WorkloadFamily::OfDepths("resnet(6,32,n3,6)@227:16");
  EXPECT_EQ(resnet.At(788).Name(), "resnet(6,32,788,6)@227:16");
  EXPECT_EQ(ResNetDepth(resnet.At(788).network), 2498);  // printed by SuperNeurons as "2500"
  EXPECT_EQ(resnet.quantity(), LimitQuantity::kDepth);
  EXPECT_EQ(WorkloadFamily::OfDepths("resnet(n,1,1,1):2").At(9).Name(), "resnet(9,1,1,1):2");
  EXPECT_EQ(WorkloadFamily::OfDepths("resnet(1,1,1,n4):2").At(9).Name(), "resnet(1,1,1,9):2");
  EXPECT_EQ(WorkloadFamily::OfDepths("constructed(n):2").At(9).Name(), "constructed(9):2");
  EXPECT_EQ(WorkloadFamily::OfDepths("densenet(6,n2,k=12):2").At(9).Name(), "densenet(6,9,k=12):2");
  for (const char* bad : {"vgg16:2", "vgg16", "resnet(6,32,36,6):16", "resnet(6,n2,n3,6):16",
                          "resnet(6,32,n3,6)", "resnet(6,32,n3,6", "resnet(6,32,n3):16",
                          "resnet(6,32,x,6):16", "resnet(6,32,n3,6):0", "resnet(6,32,n33,6):16",
                          "densenet(6,k=n):2", "n:2", "(n):2", ":", "", "resnet(6,32:n,6)"}) {
    EXPECT_THROW(WorkloadFamily::OfDepths(bad), UsageError) << bad;
  }
}

TEST(WorkloadFamilyTest, VariesTheLength) {
  const WorkloadFamily family = WorkloadFamily::OfLengths("gpt2@64:8");
  EXPECT_EQ(family.quantity(), LimitQuantity::kLength);
  EXPECT_EQ(family.At(9).Name(), "gpt2@9:8");
  EXPECT_EQ(family.most(), kLongestSequence);
  EXPECT_EQ(WorkloadFamily::OfLengths("gpt(64,2,4,100):2").At(9).Name(), "gpt(64,2,4,100)@9:2");
  for (const char* bad :
       {"gpt2", "gpt2@64", "gpt3:8", "vgg16:8", "vit@224:8", "resnet(1,1,1,1):8"}) {
    EXPECT_THROW(WorkloadFamily::OfLengths(bad), UsageError) << bad;
  }
}

// Checks properties of the limits of two policies on a small device that hold for any numbers.
TEST(LimitTest, OfPolicies) {
  LimitSearch search{WorkloadFamily::OfBatches("densenet(1,1,k=2)@16"), {}, LoadDevice("h200"), 5};
  search.asked.cost = "roofline";
  search.asked.memory = "1MiB";
  search.asked.check = true;
  int64_t last = 0;
  const LimitResult liveness =
      FindLimit(search, "liveness:algo=memory", [&](int64_t value) { last = value; });
  EXPECT_GT(liveness.limit.largest, 1);
  EXPECT_EQ(last, liveness.limit.scanned_to);
  EXPECT_THAT(liveness.next_reason, HasSubstr("out of device memory"));
  ASSERT_TRUE(liveness.metrics);
  EXPECT_LE(liveness.metrics->peak_allocated, search.memory());
  const LimitResult vdnn = FindLimit(search, "vdnn-all:algo=memory", [](int64_t) {});
  EXPECT_GE(vdnn.limit.largest, liveness.limit.largest);

  const auto value = [&](std::string_view name) {
    for (const auto& column : LimitColumns(LimitQuantity::kBatch)) {
      if (column.name == name) return column.get(liveness);
    }
    return Value();
  };
  EXPECT_EQ(value("status"), Value(std::string("ok")));
  EXPECT_EQ(value("limit"), Value(liveness.limit.largest));
  EXPECT_EQ(value("next"), Value(liveness.limit.largest + 1));

  search.asked.memory = "1B";
  const LimitResult none = FindLimit(search, "liveness", [](int64_t) {});
  EXPECT_EQ(none.limit.largest, 0);
  EXPECT_FALSE(none.metrics);
  EXPECT_THROW(FindLimit(search, "livenes", [](int64_t) {}), UsageError);
}

}  // namespace
}  // namespace spillway::testing
