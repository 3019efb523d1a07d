#include "sim/packing/time_sweep.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace spillway::sim::packing {
namespace {

constexpr double kGap = 3;  // the additional cost if a block does not fill its gap

template <typename T, size_t kSize>
T Pick(const std::array<T, kSize>& values, std::mt19937& random) {
  return values[random() % kSize];
}

}  // namespace

SweepRule DrawRule(const std::vector<int64_t>& pivots, std::mt19937& random) {
  using Stack = SweepRule::Stack;
  SweepRule rule;
  rule.pivot = pivots[random() % pivots.size()];
  rule.stack = Pick<Stack>(
      std::array{Stack::kLongest, Stack::kOldest, Stack::kFirstToEnd, Stack::kYoungest}, random);
  rule.farthest = Pick(std::array{10.0, 20.0, 50.0, 1000.0}, random);
  rule.origin = Pick(std::array{0.0, 0.0, 0.1, 0.3, 1.0}, random);
  rule.noise = Pick(std::array{0.0, 0.2, 0.5}, random);
  return rule;
}

SweepOrder OrderOf(const Problem& problem, const SweepRule& rule,
                   std::span<const uint32_t> blocks) {
  const auto& begin = problem.begin;
  const auto& end = problem.end;
  const auto& size = problem.size;
  const auto life = [&](uint32_t i) { return end[i] - begin[i]; };
  SweepOrder order;
  for (const uint32_t i : blocks) {
    (begin[i] > rule.pivot  ? order.later
     : end[i] <= rule.pivot ? order.earlier
                            : order.stack)
        .push_back(i);
  }
  SortBy(order.stack, [&](uint32_t i) {
    switch (rule.stack) {
      case SweepRule::Stack::kLongest:
        return std::pair(life(i), size[i]);
      case SweepRule::Stack::kOldest:
        return std::pair(-begin[i], size[i]);
      case SweepRule::Stack::kFirstToEnd:
        return std::pair(-end[i], size[i]);
      case SweepRule::Stack::kYoungest:
        break;
    }
    return std::pair(begin[i], size[i]);
  });
  SortBy(order.later, [&](uint32_t i) { return std::pair(-begin[i], size[i]); });
  SortBy(order.earlier, [&](uint32_t i) { return std::pair(end[i], size[i]); });
  return order;
}

int64_t BestGap(std::span<const Placed* const> met, int64_t height, const Block& block,
                bool forward, const SweepRule& rule, std::mt19937& random) {
  const auto difference = [&](int64_t a, int64_t b) {
    return std::min(static_cast<double>(a < b ? b - a : a - b), rule.farthest);
  };
  // Returns how badly a neighbour fits. A null neighbour is an end of the arena.
  const auto distance = [&](const Placed* other) {
    if (other == nullptr) return (1 + rule.origin) * rule.farthest;
    const double begins = difference(other->begin, block.begin);
    const double ends = difference(other->end, block.end);
    return forward ? ends + rule.origin * begins : begins + rule.origin * ends;
  };
  int64_t best = -1;
  double best_cost = std::numeric_limits<double>::max();
  const auto look = [&](int64_t offset, double cost) {
    if (rule.noise > 0) {
      cost *= 1 + rule.noise * (static_cast<double>(random()) / 2147483648.0 - 1);
    }
    if (cost >= best_cost) return;
    best = offset;
    best_cost = cost;
  };
  int64_t floor = 0;
  const Placed* under = nullptr;
  const auto gap = [&](int64_t top, const Placed* over) {
    if (top - floor == block.size) {
      look(floor, std::min(distance(under), distance(over)) / 2);
    } else {
      look(floor, distance(under) + kGap);
      look(top - block.size, distance(over) + kGap);
    }
  };
  for (const Placed* other : met) {
    if (other->offset - floor >= block.size) gap(other->offset, other);
    under = other->top > floor ? other : under;
    floor = std::max(floor, other->top);
  }
  if (height - floor >= block.size) gap(height, nullptr);
  return best;
}

}  // namespace spillway::sim::packing
