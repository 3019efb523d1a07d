// The common part of the searches of `packing.h`: the problem that they solve, and packing blocks
// one by one in a given order.

#ifndef SPILLWAY_SIM_PACKING_PROBLEM_H_
#define SPILLWAY_SIM_PACKING_PROBLEM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::sim::packing {

using Order = std::vector<uint32_t>;

// A stretch of time that its blocks connect. Lifetimes are half-open. Sizes and offsets are in
// granules.
struct Problem {
  std::vector<int64_t> begin, end, size;  // by block

  size_t count() const { return size.size(); }
};

struct Solution {
  std::vector<int64_t> offset;  // by block
  int64_t height = std::numeric_limits<int64_t>::max();
};

// Returns the problem of these blocks alone, in their order.
Problem Restrict(const Problem& problem, const Order& blocks);

// Returns the same problem with the fewest moments. Each moment stands for a largest set of blocks
// that are live together; moments are numbered in order of time. A block that begins before the
// first end is live from moment 0.
Problem Compress(const Problem& problem);

// Returns the sum of the live sizes at each moment, followed by a 0. REQUIRES: `problem` is
// compressed.
std::vector<int64_t> LoadsOf(const Problem& problem);

// Returns the largest sum of sizes that are live together. No packing is lower.
int64_t BoundOf(const Problem& problem);

// Returns true iff each block lies between 0 and the height, and no two blocks that are live
// together overlap. This check is slow and simple.
bool IsPacking(const Problem& problem, const Solution& solution);

enum class Gap : uint8_t { kLowest, kTightest };

// Places the blocks one by one, each in the lowest or the tightest gap between the placed blocks
// that are live at its time. A block for which `fixed` is not -1 lies at that offset. Subtracts the
// comparisons made from `steps`.
Solution Place(const Problem& problem, const Order& order, Gap rule, int64_t& steps,
               const std::vector<int64_t>& fixed = {});

// Returns all blocks by number.
inline Order AllBlocks(const Problem& problem) {
  Order order(problem.count());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Sorts blocks by descending key; blocks with equal keys keep their order.
template <typename Key>
void SortBy(Order& order, Key key) {
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
}

// Returns all blocks by descending key; blocks with equal keys by number.
template <typename Key>
Order OrderBy(const Problem& problem, Key key) {
  Order order = AllBlocks(problem);
  SortBy(order, key);
  return order;
}

// Returns the orders that the heuristics try: largest first by several measures, and by time.
std::vector<Order> Orders(const Problem& problem);

}  // namespace spillway::sim::packing

#endif  // SPILLWAY_SIM_PACKING_PROBLEM_H_
