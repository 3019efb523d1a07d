#include "sim/core/wait_filter.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace spillway::testing {
namespace {

using Filter = WaitFilter<3>;
using Waits = std::vector<std::pair<size_t, uint32_t>>;  // (queue, sequence)

Waits Take(Filter& filter, size_t waiting, const Waits& waits) {
  Filter::Newest newest;
  for (const auto& [queue, sequence] : waits) newest.Add(queue, sequence);
  Waits left;
  filter.Take(waiting, newest,
              [&](size_t queue, uint32_t sequence) { left.emplace_back(queue, sequence); });
  return left;
}

TEST(WaitFilterTest, LeavesTheNewestThatIsNotKnown) {
  Filter filter;
  EXPECT_EQ(Take(filter, 0, {}), Waits());
  EXPECT_EQ(Take(filter, 0, {{2, 1}, {1, 5}, {1, 3}, {0, 9}}), Waits({{1, 5}, {2, 1}}));
  EXPECT_EQ(Take(filter, 0, {{1, 5}, {1, 4}, {2, 1}}), Waits());
  EXPECT_EQ(Take(filter, 2, {{1, 4}}), Waits({{1, 4}}));  // each queue has its own state
  EXPECT_EQ(Take(filter, 0, {{1, 6}}), Waits({{1, 6}}));
  filter.Clear();
  EXPECT_EQ(Take(filter, 0, {{1, 1}}), Waits({{1, 1}}));
}

}  // namespace
}  // namespace spillway::testing
