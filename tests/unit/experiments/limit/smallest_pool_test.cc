#include "experiments/limit/smallest_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "tests/testing/fixtures.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

// vDNN++, section IV-B: best fit serves these with 9 units, but not with 11.
//
//   9:   |1 1 1 1 1 2 2 3 .|   the fourth fills the hole of the second or the end: either is 2 or 1
//   11:  |1 1 1 1 1 2 2 3 . . .|
TEST(SmallestPoolTest, TheSearchIsNotMonotone) {
  AllocationLog log;
  const uint32_t first = log.Allocate(Bytes(5));
  const uint32_t second = log.Allocate(Bytes(2));
  const uint32_t third = log.Allocate(Bytes(1));
  log.Free(second);
  log.Allocate(Bytes(1));
  log.Free(first);
  log.Free(third);
  log.Allocate(Bytes(8));
  EXPECT_FALSE(Replay(log, *MakeAllocator("best-fit", Bytes(9), Bytes(1))));
  EXPECT_TRUE(Replay(log, *MakeAllocator("best-fit", Bytes(11), Bytes(1))));
  EXPECT_EQ(log.Peak(Bytes(1)), Bytes(9));
  EXPECT_EQ(SearchPool(log, "best-fit", Bytes(1), Bytes(9))->size, Bytes(9));
  EXPECT_GT(SearchPool(log, "best-fit", Bytes(1), Bytes(11))->size, Bytes(11));
  EXPECT_EQ(LeastPool(log, "best-fit", Bytes(1))->size, Bytes(9));
}

AllocationLog RandomLog(std::mt19937& random) {
  AllocationLog log;
  std::vector<uint32_t> live;
  for (int step = 0; step < 40; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const Hint hint = random() % 3 == 0 ? Hint::kHigh : Hint::kLow;
      live.push_back(log.Allocate(Bytes(static_cast<int64_t>(random() % 90)), hint));
    } else {
      const size_t victim = random() % live.size();
      log.Free(live[victim]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }
  return log;
}

// One capacity after the other, as slowly as can be. A pool of the sum of all sizes and more can be
// made larger without effect.
std::optional<Bytes> TryEverything(const AllocationLog& log, const std::string& allocator,
                                   Bytes granularity) {
  for (Bytes size = log.Peak(granularity); size < Bytes(8000); size += granularity) {
    if (!Replay(log, *MakeAllocator(allocator, size, granularity))) return size;
  }
  return std::nullopt;
}

TEST(SmallestPoolTest, LeastIsWhatTryingEverySizeFinds) {
  std::mt19937 random(5);
  int searched_too_far = 0, skipped = 0, unserved = 0;
  for (const char* allocator :
       {"best-fit", "first-fit", "high-end", "high-end:reading=text", "first-fit:granularity=8B"}) {
    const Bytes granularity(std::string(allocator).ends_with("8B") ? 8 : 4);
    for (int round = 0; round < 200; ++round) {
      const AllocationLog log = RandomLog(random);
      const Bytes aggregate = log.Peak(granularity);
      const auto searched = SearchPool(log, allocator, Bytes(4), aggregate);
      const auto least = LeastPool(log, allocator, Bytes(4));
      const auto expected = TryEverything(log, allocator, granularity);
      ASSERT_EQ(least ? std::optional(least->size) : std::nullopt, expected)
          << allocator << ", round " << round;
      unserved += expected ? 0 : 1;
      if (!searched) continue;
      ASSERT_TRUE(expected);
      ASSERT_FALSE(Replay(log, *MakeAllocator(allocator, searched->size, Bytes(4))));
      ASSERT_GE(searched->size, *expected);
      searched_too_far += searched->size > *expected ? 1 : 0;
      skipped += static_cast<int>((*expected - aggregate).count() / granularity.count()) + 1 -
                 least->trials;
    }
  }
  EXPECT_GT(unserved, 0);
  EXPECT_GT(searched_too_far, 20);
  EXPECT_GT(skipped, 1000);
}

TEST(SmallestPoolTest, PagedAllocatorsHaveNone) {
  EXPECT_THROW(LeastPool(AllocationLog(), "native", Bytes(512)), UsageError);
  EXPECT_THROW(LeastPool(AllocationLog(), "worst-fit", Bytes(512)), UsageError);
}

TEST(SmallestPoolTest, APolicyFitsIntoIt) {
  const Trace trace = testing::ChainTrace();
  const testing::FixedCost cost;
  const Device device = testing::RoundDevice();
  const spillway::Setup setup{Borrow(trace), device, Borrow(cost), device.memory};
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const AllocationLog log = RequestsOf(setup, *registry.Make("vdnn-conv"));
  EXPECT_EQ(log.Peak(device.alignment),
            Simulate(setup, *registry.Make("vdnn-conv")).report.metrics.peak_allocated);
  spillway::Setup tight = setup;
  tight.memory = LeastPool(log, "best-fit", device.alignment)->size;
  EXPECT_TRUE(Simulate(tight, *registry.Make("vdnn-conv")).report.fits());
}

}  // namespace
}  // namespace spillway
