#include "sim/alloc/planned.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "sim/alloc/make_allocator.h"
#include "sim/packing/allocation_log.h"

namespace spillway::testing {
namespace {

constexpr Bytes kGranularity(512);

// Two parameters, then iterations of three blocks. The first and the third block are never live
// together, so a plan needs no more than five units.
AllocationLog ThreeIterations() {
  AllocationLog log;
  log.Allocate(Bytes::KiB(1));
  log.Allocate(Bytes::KiB(1));
  for (int i = 0; i < 3; ++i) {
    const uint32_t first = log.Allocate(Bytes::KiB(2));
    const uint32_t second = log.Allocate(Bytes::KiB(1));
    log.Free(first);
    const uint32_t third = log.Allocate(Bytes::KiB(2));
    log.Free(second);
    log.Free(third);
  }
  return log;
}

std::shared_ptr<const AllocationPlan> PlanOf(const AllocationLog& log, size_t period,
                                             Bytes memory) {
  PackingOptions options;
  options.granularity = kGranularity;
  return std::make_shared<const AllocationPlan>(PlanAllocations(log, period, memory, options));
}

class PlannedTest : public ::testing::Test {
 protected:
  Block Take(Bytes size) { return *planned_.Allocate(size, Hint::kLow); }

  std::shared_ptr<const AllocationPlan> plan_ = PlanOf(ThreeIterations(), 3, Bytes::KiB(8));
  Planned planned_{plan_, kGranularity};
};

TEST_F(PlannedTest, RepeatsWhatIsPlanned) {
  EXPECT_EQ(plan_->repeat, 2u);
  EXPECT_EQ(plan_->live, (std::vector<size_t>{0, 1, 2, 3, 3}));
  Take(Bytes::KiB(1));
  Take(Bytes::KiB(1));
  for (int i = 0; i < 3; ++i) {
    const Block first = Take(Bytes::KiB(2));
    const Block second = Take(Bytes::KiB(1));
    EXPECT_EQ(first.offset, plan_->offsets[2]);
    EXPECT_EQ(second.offset, plan_->offsets[3]);
    planned_.Free(first);
    planned_.Free(second);
    planned_.Free(Take(Bytes::KiB(2)));
  }
  EXPECT_LE(planned_.Stats().reserved, plan_->height);
}

TEST_F(PlannedTest, DeviatesByBestFitAndTakesThePlanUpAgain) {
  Take(Bytes::KiB(1));
  Take(Bytes::KiB(1));
  const Block first = Take(Bytes::KiB(2));
  const Block other = Take(Bytes(1536));  // the plan has 1 KiB here
  const Block second = Take(Bytes::KiB(1));
  planned_.Free(first);
  planned_.Free(other);
  EXPECT_EQ(planned_.Stats().largest_free, Bytes::KiB(8) - Bytes::KiB(2) - Bytes::KiB(1));
  const Block third = Take(Bytes(512));  // the iteration still deviates from the plan
  planned_.Free(second);
  planned_.Free(third);
  EXPECT_EQ(Take(Bytes::KiB(2)).offset, plan_->offsets[2]);
  EXPECT_EQ(Take(Bytes::KiB(1)).offset, plan_->offsets[3]);
}

TEST_F(PlannedTest, ARequestThatFailsIsNoDeviation) {
  Take(Bytes::KiB(1));
  Take(Bytes::KiB(1));
  EXPECT_FALSE(planned_.Allocate(Bytes::KiB(7), Hint::kLow));
  EXPECT_EQ(Take(Bytes::KiB(2)).offset, plan_->offsets[2]);
}

TEST_F(PlannedTest, APlaceThatIsTakenIsADeviation) {
  Take(Bytes::KiB(1));
  const Block kept = Take(Bytes::KiB(3));  // the plan has 1 KiB here
  ASSERT_LT(kept.offset, plan_->offsets[2]);
  ASSERT_GT(kept.end(), plan_->offsets[2]);
  EXPECT_GE(Take(Bytes::KiB(2)).offset, kept.end());
}

// Requests that deviate are served without overlaps if the memory has a gap. Once requests are
// steady again, their blocks lie where they were planned.
TEST(PlannedProperty, ServesWhatDeviatesAnywhere) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    AllocationLog log;
    std::vector<Bytes> sizes;
    for (int i = 0; i < 8; ++i) sizes.push_back(Bytes(512 * (1 + random() % 9)));
    const Bytes kept(512 * (1 + random() % 4));
    log.Allocate(kept);
    for (int iteration = 0; iteration < 3; ++iteration) {
      std::vector<uint32_t> live;
      for (const Bytes size : sizes) {
        live.push_back(log.Allocate(size));
        if (live.size() < 3) continue;
        log.Free(live.front());
        live.erase(live.begin());
      }
      for (const uint32_t block : live) log.Free(block);
    }
    const Bytes memory = log.Peak(kGranularity) + kGranularity * static_cast<int64_t>(random() % 8);
    const auto plan = PlanOf(log, sizes.size(), memory);
    Planned planned(plan, kGranularity);
    std::map<Bytes, Block> live;
    const auto take = [&](Bytes size) {
      const auto block = planned.Allocate(size, Hint::kLow);
      if (!block) return block;
      EXPECT_LE(block->end(), std::max(plan->memory, plan->height));
      const auto after = live.lower_bound(block->offset);
      EXPECT_TRUE(after == live.end() || after->first >= block->end());
      EXPECT_TRUE(after == live.begin() || std::prev(after)->second.end() <= block->offset);
      live.emplace(block->offset, *block);
      return block;
    };
    const auto give = [&](const Block& block) {
      planned.Free(block);
      live.erase(block.offset);
    };
    ASSERT_TRUE(take(kept));
    for (int iteration = 0; iteration < 6; ++iteration) {
      const bool steady = iteration % 2 == 0;
      std::vector<Block> blocks;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const bool changed = !steady && random() % 3 == 0;
        const auto block = take(changed ? Bytes(512 * (1 + random() % 9)) : sizes[i]);
        if (steady) {
          ASSERT_TRUE(block);
          EXPECT_EQ(block->offset, plan->offsets[plan->repeat + i]);
        }
        if (block) blocks.push_back(*block);
        if (blocks.size() < 3) continue;
        give(blocks.front());
        blocks.erase(blocks.begin());
      }
      for (const Block& block : blocks) give(block);
    }
  }
}

// Returns a log with up to `most` blocks live, some of sizes that come again.
AllocationLog DrawLog(std::mt19937& random, int requests, size_t most) {
  AllocationLog log;
  std::vector<uint32_t> live;
  for (int i = 0; i < requests; ++i) {
    while (live.size() >= most || (!live.empty() && random() % 3 == 0)) {
      const size_t at = random() % live.size();
      log.Free(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const auto large = static_cast<int64_t>(random() % 40) << 18;
    live.push_back(log.Allocate(Bytes(random() % 3 == 0 ? 1 + large / 512 : 1 + large)));
  }
  return log;
}

// A plan needs no more memory than each allocator that places blocks as they come, whatever the
// effort, and fits wherever one of them serves the log.
TEST(PlannedProperty, IsNeverAboveAnAllocator) {
  std::mt19937 random(17);
  for (int round = 0; round < 30; ++round) {
    const AllocationLog log = DrawLog(random, 20 + round * 8, 3 + round);
    PackingOptions options;
    options.granularity = kGranularity;
    for (const char* name : {"best-fit", "first-fit", "cnmem", "pytorch"}) {
      const auto allocator = MakeAllocator(name, Bytes::Unlimited(), kGranularity);
      ASSERT_FALSE(Replay(log, *allocator));
      const Bytes reserved = allocator->Stats().reserved;
      for (const int64_t tolerance : {5, 300}) {  // the first plan that is found may be good enough
        options.steps = tolerance == 5 ? 1'000'000 : 0;
        options.tolerance = tolerance;
        options.memory = Bytes::Unlimited();
        const AllocationPlan plan = PlanAllocations(log, 0, reserved, options);
        EXPECT_LE(plan.height, reserved) << name << ", round " << round;
      }
      options.steps = 1'000'000;
      for (int64_t part = 90; part < 100; part += 3) {
        options.memory = Bytes(reserved.count() / 100 * part);
        const auto limited = MakeAllocator(name, options.memory, kGranularity);
        if (Replay(log, *limited)) continue;
        EXPECT_LE(PlanAllocations(log, 0, options.memory, options).height, options.memory)
            << name << ", round " << round << ", " << part << " %";
      }
    }
  }
}

// PyTorch's allocator places in multiples of 512 bytes only.
TEST(PlannedProperty, PlansInAnyUnit) {
  std::mt19937 random(19);
  for (const int64_t unit : {1, 3, 100, 512, 768, 4096}) {
    const AllocationLog log = DrawLog(random, 60, 8);
    PackingOptions options;
    options.granularity = Bytes(unit);
    options.steps = 100'000;
    const AllocationPlan plan = PlanAllocations(log, 0, Bytes::Unlimited(), options);
    EXPECT_EQ(plan.bound, log.Peak(Bytes(unit)));
    EXPECT_GE(plan.height, plan.bound);
  }
}

}  // namespace
}  // namespace spillway::testing
