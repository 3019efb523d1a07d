// What the searches of `packing.h` share: the problem that they solve, and packing blocks one by
// one in a given order.

#ifndef SPILLWAY_SIM_PACKING_PROBLEM_H_
#define SPILLWAY_SIM_PACKING_PROBLEM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace spillway::packing {

using Order = std::vector<uint32_t>;

// One stretch of time that its blocks connect. Lifetimes are half-open; sizes and offsets are in
// granules.
struct Problem {
  std::vector<int64_t> begin, end, size;  // by block

  size_t count() const { return size.size(); }
};

struct Solution {
  std::vector<int64_t> offset;  // by block
  int64_t height = std::numeric_limits<int64_t>::max();
};

// The same problem in the shortest time: moments are the largest sets of blocks that are live
// together, numbered in their order. What begins before the first end lives from moment 0.
Problem Compress(const Problem& problem);

// The sum of the sizes that are live at each moment, and a last one of 0. REQUIRES: `problem` is
// compressed.
std::vector<int64_t> LoadsOf(const Problem& problem);

// The largest sum of sizes that are live together: no packing is lower.
int64_t BoundOf(const Problem& problem);

// The checker, slow and obvious: each block lies between 0 and the height, and no two that are live
// together overlap.
bool IsPacking(const Problem& problem, const Solution& solution);

enum class Gap : uint8_t { kLowest, kTightest };

// Places the blocks one by one, each in the lowest or the tightest gap between those that it meets;
// where `fixed`, by block, is not -1 it lies there. Takes the comparisons made off `steps`.
Solution Place(const Problem& problem, const Order& order, Gap rule, int64_t& steps,
               const std::vector<int64_t>& fixed = {});

// By number.
inline Order AllBlocks(const Problem& problem) {
  Order order(problem.count());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Sorts blocks by descending key, stably.
template <typename Key>
void SortBy(Order& order, Key key) {
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
}

// All blocks by descending key, equals by number.
template <typename Key>
Order OrderBy(const Problem& problem, Key key) {
  Order order = AllBlocks(problem);
  SortBy(order, key);
  return order;
}

// Largest first, by one measure or another, and in the order of time.
std::vector<Order> Orders(const Problem& problem);

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_PACKING_PROBLEM_H_
