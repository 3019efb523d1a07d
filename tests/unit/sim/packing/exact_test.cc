#include "sim/packing/exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/tight.h"

namespace spillway::testing {
namespace {

using namespace packing;

// Returns the parameters with every technique on, and with each technique off.
std::vector<std::pair<std::string, ExactParams>> Ablations() {
  return {{"all", {}},
          {"fewest", {.fewest = false}},
          {"right", {.right = false}},
          {"repair", {.repair = false}}};
}

Problem Draw(std::mt19937& random, size_t count, int64_t moments, int64_t largest) {
  Problem problem;
  for (size_t i = 0; i < count; ++i) {
    const auto a = static_cast<int64_t>(random() % moments);
    const auto b = static_cast<int64_t>(random() % moments);
    problem.begin.push_back(std::min(a, b));
    problem.end.push_back(std::max(a, b) + 1);
    problem.size.push_back(1 + static_cast<int64_t>(random() % largest));
  }
  return problem;
}

// Returns the lowest height over all orders of placing each block on top of all placed blocks that
// it overlaps in time. One of these orders is optimal.
int64_t BestOfAllOrders(const Problem& problem) {
  Order order = AllBlocks(problem);
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> top(problem.count(), 0);
    int64_t height = 0;
    for (const uint32_t i : order) {
      int64_t offset = 0;
      for (size_t j = 0; j < problem.count(); ++j) {
        const bool meet = problem.begin[i] < problem.end[j] && problem.begin[j] < problem.end[i];
        if (meet) offset = std::max(offset, top[j]);
      }
      top[i] = offset + problem.size[i];
      height = std::max(height, top[i]);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(ExactTest, NoInferenceLosesAPacking) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    // In every second round many blocks have equal sizes.
    const Problem problem = Draw(random, 7, 2 + round % 8, round % 2 == 0 ? 2 : 12);
    const int64_t best = BestOfAllOrders(problem);
    for (const auto& [name, params] : Ablations()) {
      int64_t steps = 100'000'000;
      const Solution found = SearchExactly(problem, best + 1, steps, params);
      ASSERT_EQ(found.height, best) << name << ", round " << round;
      ASSERT_TRUE(IsPacking(problem, found)) << name << ", round " << round;
      ASSERT_TRUE(SearchExactly(problem, best, steps, params).offset.empty()) << name;
      ASSERT_GT(steps, 0) << name << ", round " << round << ": nothing was proved";
    }
  }
}

TEST(ExactTest, PacksWhatIsFullAllTheTime) {
  for (const Cut cut : {Cut::kGuillotine, Cut::kPinwheel, Cut::kCoarse, Cut::kBrick}) {
    for (const auto& [blocks, overlap] : {std::pair{100, 30}, {200, 60}, {300, 100}, {400, 80}}) {
      const Problem problem = Tight(cut, blocks, overlap, 5);
      ASSERT_EQ(BoundOf(problem), kTightHeight);
      int64_t steps = 500'000'000;
      const Solution found = SearchExactly(problem, kTightHeight + 1, steps);
      EXPECT_TRUE(IsPacking(problem, found)) << static_cast<int>(cut) << ", " << blocks;
      EXPECT_EQ(found.height, kTightHeight);
    }
  }
}

TEST(ExactTest, EndsWithTheSteps) {
  const Problem problem = Tight(Cut::kHoles, 350, 120, 5);
  for (const int64_t limit : {0, 1'000, 100'000}) {
    int64_t steps = limit;
    EXPECT_TRUE(SearchExactly(problem, kTightHeight + 1, steps).offset.empty());
    EXPECT_LE(steps, 0);
    EXPECT_GT(steps, -100'000);  // at most one more choice and the preparation of its attempt
  }
}

TEST(ExactTest, TheCheckerSeesWhatIsWrong) {
  const Problem problem{{0, 1}, {2, 3}, {5, 4}};
  EXPECT_TRUE(IsPacking(problem, {{0, 5}, 9}));
  EXPECT_TRUE(IsPacking(problem, {{4, 0}, 9}));
  EXPECT_FALSE(IsPacking(problem, {{0, 4}, 9}));   // they overlap
  EXPECT_FALSE(IsPacking(problem, {{0, 5}, 8}));   // ends above the height
  EXPECT_FALSE(IsPacking(problem, {{-1, 4}, 9}));  // begins below 0
  EXPECT_FALSE(IsPacking(problem, {{0}, 9}));
}

}  // namespace
}  // namespace spillway::testing
