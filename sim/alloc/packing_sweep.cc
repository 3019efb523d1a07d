#include "sim/alloc/packing_sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace spillway::packing {
namespace {

constexpr int kDraws = 60;        // sweeps without pins
constexpr size_t kStarts = 6;     // the best of them are repaired
constexpr size_t kMostPins = 10;  // at a time
constexpr int kPatience = 20;     // sweeps in a row that may bring no improvement

template <typename T, size_t kSize>
T Pick(const std::array<T, kSize>& values, std::mt19937& random) {
  return values[random() % kSize];
}

}  // namespace

// Large blocks are hard to place, long-lived ones in less than proportion to their life.
double WeightOf(const Problem& problem, uint32_t block, double unit) {
  return static_cast<double>(problem.size[block]) / unit *
         std::sqrt(static_cast<double>(problem.end[block] - problem.begin[block]));
}

std::vector<int64_t> FullMoments(const Problem& problem, int64_t bound) {
  // Memory is fullest after a block has begun and before the next one ends.
  std::vector<int64_t> times = problem.begin;
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::vector<int64_t> pivots;
  for (const int64_t time : times) {
    int64_t live = 0;
    for (size_t i = 0; i < problem.count(); ++i) {
      if (problem.begin[i] <= time && time < problem.end[i]) live += problem.size[i];
    }
    if (live >= bound - bound / 20) pivots.push_back(time);
  }
  return pivots;
}

SweepRule DrawRule(const std::vector<int64_t>& pivots, std::mt19937& random) {
  using Stack = SweepRule::Stack;
  SweepRule rule;
  // The first moments are the best more often than any others; from either end of time there is
  // nothing to begin with.
  const auto where = random() % 16;
  if (where == 0) {
    rule.pivot = std::numeric_limits<int64_t>::min();
  } else if (where == 1) {
    rule.pivot = std::numeric_limits<int64_t>::max();
  } else {
    const size_t among = where % 2 == 0 ? pivots.size() : std::min<size_t>(pivots.size(), 8);
    rule.pivot = pivots[random() % among];
  }
  rule.stack = Pick<Stack>(
      std::array{Stack::kLongest, Stack::kOldest, Stack::kFirstToEnd, Stack::kYoungest}, random);
  rule.by_life = random() % 2 == 0;
  rule.gap = Pick(std::array{0.0, 3.0, 10.0, 30.0}, random);
  rule.farthest = Pick(std::array{10.0, 20.0, 50.0, 1000.0}, random);
  rule.origin = Pick(std::array{0.0, 0.0, 0.1, 0.3, 1.0}, random);
  rule.noise = Pick(std::array{0.0, 0.2, 0.5}, random);
  rule.seed = static_cast<uint32_t>(random());
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
  const auto sort = [&](std::vector<uint32_t>& some, const auto& key) {
    std::stable_sort(some.begin(), some.end(),
                     [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  };
  sort(order.stack, [&](uint32_t i) {
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
  const auto rank = [&](uint32_t i) { return rule.by_life ? life(i) : size[i]; };
  sort(order.later, [&](uint32_t i) { return std::pair(-begin[i], rank(i)); });
  sort(order.earlier, [&](uint32_t i) { return std::pair(end[i], rank(i)); });
  return order;
}

int64_t BestGap(const std::vector<Placed>& placed, int64_t lowest, int64_t height, int64_t size,
                int64_t begin, int64_t end, const SweepRule& rule, std::mt19937& random) {
  const auto difference = [&](int64_t a, int64_t b) {
    return std::min(static_cast<double>(a < b ? b - a : a - b), rule.farthest);
  };
  // How ill a neighbour suits; null is an end of the arena.
  const auto distance = [&](const Placed* other) {
    if (other == nullptr) return (1 + rule.origin) * rule.farthest;
    return difference(other->end, end) + rule.origin * difference(other->begin, begin);
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
  int64_t floor = lowest;
  const Placed* under = nullptr;
  const auto gap = [&](int64_t top, const Placed* over) {
    if (top - floor < size) return;
    if (top - floor == size) {
      look(floor, std::min(distance(under), distance(over)) / 2);
    } else {
      look(floor, distance(under) + rule.gap);
      look(top - size, distance(over) + rule.gap);
    }
  };
  for (const Placed& other : placed) {
    if (other.begin >= end) continue;
    gap(other.offset, &other);
    if (other.top <= floor) continue;
    floor = other.top;
    under = &other;
  }
  gap(height, nullptr);
  return best;
}

SweepSearch::SweepSearch(const Problem& problem, int64_t bound)
    : problem_(Compress(problem)),
      backward_(problem_),
      pivots_(FullMoments(problem_, bound)),
      weight_unit_(static_cast<double>(bound)),
      random_(7) {
  for (size_t i = 0; i < problem.count(); ++i) {
    backward_.begin[i] = -problem_.end[i];
    backward_.end[i] = -problem_.begin[i];
  }
}

SweepSearch::Attempt SweepSearch::Sweep(const SweepRule& rule, const std::vector<Pin>& pins,
                                        int64_t height, int64_t& steps) {
  const auto& begin = problem_.begin;
  const auto& end = problem_.end;
  const auto& size = problem_.size;
  Attempt attempt{rule, std::vector<int64_t>(problem_.count(), -1), {}, 0};
  for (const Pin& pin : pins) attempt.offset[pin.block] = pin.offset;
  SweepOrder order = OrderOf(problem_, rule, AllBlocks(problem_));
  for (auto* blocks : {&order.stack, &order.later, &order.earlier}) {
    std::erase_if(*blocks, [&](uint32_t i) { return attempt.offset[i] >= 0; });
  }

  std::vector<Placed> placed, mirrored;
  const auto put = [&](uint32_t i) {
    const int64_t offset = attempt.offset[i];
    placed.push_back({offset, offset + size[i], begin[i], end[i], i});
    mirrored.push_back({offset, offset + size[i], -end[i], -begin[i], i});
  };
  for (const Pin& pin : pins) put(pin.block);
  // The pins may have taken what the stack needs; it goes around them.
  int64_t floor = 0;
  for (const uint32_t i : order.stack) {
    int64_t offset = floor;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Pin& pin : pins) {
        const int64_t top = pin.offset + size[pin.block];
        if (problem_.Meet(pin.block, i) && pin.offset < offset + size[i] && offset < top) {
          offset = top;
          moved = true;
        }
      }
    }
    if (offset + size[i] > height) {
      attempt.homeless.push_back(i);
      attempt.missing += Weight(i);
      continue;
    }
    attempt.offset[i] = offset;
    floor = offset + size[i];
    put(i);
  }
  std::mt19937 random(rule.seed);
  Place(problem_, order.later, std::move(placed), height, random, attempt, steps);
  Place(backward_, order.earlier, std::move(mirrored), height, random, attempt, steps);
  return attempt;
}

void SweepSearch::Place(const Problem& times, const std::vector<uint32_t>& order,
                        std::vector<Placed> placed, int64_t height, std::mt19937& random,
                        Attempt& attempt, int64_t& steps) const {
  const SweepRule& rule = attempt.rule;
  const auto below = [](const Placed& a, const Placed& b) { return a.offset < b.offset; };
  std::stable_sort(placed.begin(), placed.end(), below);
  for (const uint32_t block : order) {
    const int64_t begin = times.begin[block], end = times.end[block], size = times.size[block];
    std::erase_if(placed, [&](const Placed& other) { return other.end <= begin; });
    steps -= static_cast<int64_t>(placed.size());
    const int64_t best = BestGap(placed, 0, height, size, begin, end, rule, random);
    if (best < 0) {
      attempt.homeless.push_back(block);
      attempt.missing += Weight(block);
      continue;
    }
    attempt.offset[block] = best;
    const Placed here{best, best + size, begin, end, block};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), here, below), here);
  }
}

// A block without a place, and one of the best offsets for it: those that touch others, by the
// weight of what is in the way there.
SweepSearch::Pin SweepSearch::ChoosePin(const Attempt& attempt, const std::vector<Pin>& pins,
                                        int64_t height, int64_t& steps) {
  const uint32_t block = attempt.homeless[random_() % attempt.homeless.size()];
  const int64_t size = problem_.size[block];
  struct InTheWay {
    int64_t offset, top;
    double weight;
  };
  std::vector<InTheWay> met;
  std::vector<int64_t> offsets{0, height - size};
  for (uint32_t i = 0; i < problem_.count(); ++i) {
    if (attempt.offset[i] < 0 || !problem_.Meet(i, block)) continue;
    const int64_t offset = attempt.offset[i], top = offset + problem_.size[i];
    const bool pinned =
        std::any_of(pins.begin(), pins.end(), [&](const Pin& pin) { return pin.block == i; });
    met.push_back({offset, top, Weight(i) + (pinned ? 0.2 : 0)});
    offsets.push_back(top);
    offsets.push_back(offset - size);
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  std::vector<std::pair<double, int64_t>> choices;
  for (const int64_t offset : offsets) {
    if (offset < 0 || offset + size > height) continue;
    double weight = 0;
    for (const InTheWay& other : met) {
      if (other.offset < offset + size && offset < other.top) weight += other.weight;
    }
    choices.push_back({weight * (0.5 + Uniform()), offset});
  }
  steps -= static_cast<int64_t>(problem_.count() + offsets.size() * met.size());
  std::sort(choices.begin(), choices.end());
  return {block, choices[random_() % std::min<size_t>(choices.size(), 4)].second};
}

SweepSearch::Attempt SweepSearch::Repair(const Attempt& start, int64_t height, int64_t& steps) {
  Attempt current = start;
  std::vector<Pin> pins;
  for (int idle = 0; idle < kPatience && !current.homeless.empty() && steps > 0;) {
    const Pin pin = ChoosePin(current, pins, height, steps);
    const int64_t top = pin.offset + problem_.size[pin.block];
    std::vector<Pin> more = pins;
    std::erase_if(more, [&](const Pin& other) {
      return other.block == pin.block ||
             (problem_.Meet(other.block, pin.block) && other.offset < top &&
              pin.offset < other.offset + problem_.size[other.block]);
    });
    if (more.size() == kMostPins) more.erase(more.begin());
    more.push_back(pin);
    SweepRule rule = start.rule;
    rule.seed = static_cast<uint32_t>(random_());
    Attempt next = Sweep(rule, more, height, steps);
    ++idle;
    if (next.missing > current.missing * 1.02) continue;  // slightly worse is a way out
    if (next.missing < current.missing * 0.999) idle = 0;
    current = std::move(next);
    pins = std::move(more);
  }
  return current;
}

Solution SweepSearch::Run(int64_t height, int64_t& steps) {
  const auto solution = [&](const Attempt& attempt) {
    Solution found{attempt.offset, 0};
    for (size_t i = 0; i < problem_.count(); ++i) {
      found.height = std::max(found.height, found.offset[i] + problem_.size[i]);
    }
    return found;
  };
  while (steps > 0) {
    std::vector<Attempt> starts;
    for (int i = 0; i < kDraws && steps > 0; ++i) {
      Attempt attempt = Sweep(DrawRule(pivots_, random_), {}, height, steps);
      if (attempt.homeless.empty()) return solution(attempt);
      starts.push_back(std::move(attempt));
    }
    std::stable_sort(starts.begin(), starts.end(),
                     [](const Attempt& a, const Attempt& b) { return a.missing < b.missing; });
    starts.resize(std::min(starts.size(), kStarts));
    for (const Attempt& start : starts) {
      const Attempt attempt = Repair(start, height, steps);
      if (attempt.homeless.empty()) return solution(attempt);
    }
  }
  return {};
}

}  // namespace spillway::packing
