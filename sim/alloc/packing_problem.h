// What the searches of `packing.h` share: the problem that they solve, and packing blocks one by
// one in a given order.

#ifndef SPILLWAY_SIM_ALLOC_PACKING_PROBLEM_H_
#define SPILLWAY_SIM_ALLOC_PACKING_PROBLEM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace spillway::packing {

using Order = std::vector<uint32_t>;

// One stretch of time that its blocks connect. Lifetimes are half-open; sizes and offsets are in
// granules.
struct Problem {
  std::vector<int64_t> begin, end, size;  // by block

  size_t count() const { return size.size(); }
  bool Meet(uint32_t a, uint32_t b) const { return begin[a] < end[b] && begin[b] < end[a]; }
};

struct Solution {
  std::vector<int64_t> offset;  // by block
  int64_t height = std::numeric_limits<int64_t>::max();
};

// The largest sum of sizes that are live together: no packing is lower.
int64_t BoundOf(const Problem& problem);

// The same problem in the shortest time: moments are the largest sets of blocks that are live
// together, numbered in their order. What begins before the first end lives from moment 0.
Problem Compress(const Problem& problem);

enum class Gap : uint8_t { kLowest, kTightest };

// Places the blocks one by one, each in the lowest or the tightest gap between those that it meets.
// Takes the comparisons made off `steps`.
Solution Place(const Problem& problem, const Order& order, Gap rule, int64_t& steps);

// A place for a block, and the weight of what is in the way there.
struct Choice {
  int64_t offset;
  int64_t weight;
};
// One that may be in the way, with its weight.
struct Weighted {
  int64_t at;
  int64_t weight;
};

// The lowest free place from `lowest` to `highest`, else one of those where the least is in the
// way, drawn among equals. A block is in the way of places above its `at` in `met` and below its
// `at` in `passed`, both ascending; only these and the ends are worth a look.
Choice LeastInTheWay(const std::vector<Weighted>& met, const std::vector<Weighted>& passed,
                     int64_t lowest, int64_t highest, std::mt19937& random);

// By number.
inline Order AllBlocks(const Problem& problem) {
  Order order(problem.count());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// The blocks by descending key, equals by number.
template <typename Key>
Order OrderBy(const Problem& problem, Key key) {
  Order order = AllBlocks(problem);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  return order;
}

// Largest first, by one measure or another, and in the order of time.
std::vector<Order> Orders(const Problem& problem);

}  // namespace spillway::packing

#endif  // SPILLWAY_SIM_ALLOC_PACKING_PROBLEM_H_
