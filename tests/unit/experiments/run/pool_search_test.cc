#include "experiments/run/pool_search.h"

#include <gtest/gtest.h>

#include <random>

#include "sim/alloc/make_allocator.h"

namespace spillway::testing {
namespace {

// vDNN++, section IV-B: best fit serves these requests with 9 units, but not with 11.
//
//   9:   |1 1 1 1 1 2 2 3 .|       the fourth request, of 1, takes the end, where 1 is free
//   11:  |1 1 1 1 1 2 2 3 . . .|   it takes the hole of 2 that the second left
TEST(PoolSearchTest, TheSearchIsNotMonotone) {
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
  EXPECT_EQ(SearchPool(log, "best-fit", Bytes(1), Bytes(9)), Bytes(9));
  EXPECT_GT(SearchPool(log, "best-fit", Bytes(1), Bytes(11)), Bytes(11));
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

// Tries one capacity after the other and returns the least that serves the log, or nullopt if none
// below 8000 bytes does. A pool larger than the sum of all sizes behaves the same at any size.
std::optional<Bytes> TryEverything(const AllocationLog& log, const std::string& allocator,
                                   Bytes granularity) {
  for (Bytes size = log.Peak(granularity); size < Bytes(8000); size += granularity) {
    if (!Replay(log, *MakeAllocator(allocator, size, granularity))) return size;
  }
  return std::nullopt;
}

TEST(PoolSearchTest, WhatIsFoundServesAndMayNotBeTheLeast) {
  std::mt19937 random(5);
  int searched_too_far = 0, unserved = 0;
  for (const char* allocator : {"best-fit", "first-fit", "high-end", "high-end:reading=text"}) {
    for (int round = 0; round < 200; ++round) {
      const AllocationLog log = RandomLog(random);
      const auto searched = SearchPool(log, allocator, Bytes(4), log.Peak(Bytes(4)));
      const auto least = TryEverything(log, allocator, Bytes(4));
      unserved += searched ? 0 : 1;
      if (!searched) {  // in this case no large pool serves the log
        ASSERT_TRUE(Replay(log, *MakeAllocator(allocator, Bytes(8000), Bytes(4)))) << round;
        continue;
      }
      ASSERT_TRUE(least);
      ASSERT_FALSE(Replay(log, *MakeAllocator(allocator, *searched, Bytes(4))));
      ASSERT_GE(*searched, *least);
      searched_too_far += *searched > *least ? 1 : 0;
    }
  }
  EXPECT_GT(unserved, 0);
  EXPECT_GT(searched_too_far, 20);
}

TEST(PoolSearchTest, GrowsByWhatIsLackingUntilNothingHelps) {
  const auto steps = [](std::optional<Bytes> (*lacking)(Bytes)) {
    return SearchPool(Bytes(10), lacking);
  };
  EXPECT_EQ(steps([](Bytes) -> std::optional<Bytes> { return Bytes(0); }), Bytes(10));
  EXPECT_EQ(steps([](Bytes size) -> std::optional<Bytes> {
              return size < Bytes(15) ? Bytes(3) : Bytes(0);
            }),
            Bytes(16));
  EXPECT_EQ(steps([](Bytes size) -> std::optional<Bytes> {
              return size < Bytes(15) ? std::optional(Bytes(3)) : std::nullopt;
            }),
            std::nullopt);
}

}  // namespace
}  // namespace spillway::testing
