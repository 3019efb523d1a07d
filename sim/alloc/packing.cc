#include "sim/alloc/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "sim/core/error.h"

namespace spillway {
namespace {

using Order = std::vector<uint32_t>;

// One stretch of time that its blocks connect. Sizes and offsets are in granules.
struct Problem {
  std::vector<int64_t> begin, end, size;  // by block

  size_t count() const { return size.size(); }
  bool Meet(uint32_t a, uint32_t b) const { return begin[a] < end[b] && begin[b] < end[a]; }
};

struct Solution {
  std::vector<int64_t> offset;  // by block
  int64_t height = std::numeric_limits<int64_t>::max();
};

// For each step at which a block begins: the sum of live sizes. The largest is the bound.
int64_t BoundOf(const Problem& problem) {
  struct Change {
    int64_t at;
    int64_t size;
    bool operator<(const Change& other) const {
      return at != other.at ? at < other.at : size < other.size;  // ends before beginnings
    }
  };
  std::vector<Change> changes;
  for (size_t i = 0; i < problem.count(); ++i) {
    changes.push_back({problem.begin[i], problem.size[i]});
    changes.push_back({problem.end[i], -problem.size[i]});
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0, bound = 0;
  for (const Change& change : changes) bound = std::max(bound, live += change.size);
  return bound;
}

// --- Heuristics
// -----------------------------------------------------------------------------------

enum class Gap : uint8_t { kLowest, kTightest };

// Places the blocks one by one, each in the lowest or the tightest gap between those that it meets.
// Takes the comparisons made off `steps`.
Solution Place(const Problem& problem, const Order& order, Gap rule, int64_t& steps) {
  struct Placed {
    int64_t offset, top, begin, end;
  };
  Solution solution{std::vector<int64_t>(problem.count(), 0), 0};
  std::vector<Placed> placed;  // by offset
  placed.reserve(order.size());
  for (const uint32_t block : order) {
    const int64_t begin = problem.begin[block], end = problem.end[block];
    const int64_t size = problem.size[block];
    int64_t floor = 0, best = -1, best_room = std::numeric_limits<int64_t>::max();
    steps -= static_cast<int64_t>(placed.size());
    for (const Placed& other : placed) {
      if (begin >= other.end || other.begin >= end) continue;
      const int64_t room = other.offset - floor;
      if (room >= size && room < best_room) {
        best = floor;
        best_room = room;
        if (rule == Gap::kLowest) break;
      }
      floor = std::max(floor, other.top);
    }
    const int64_t offset = best >= 0 ? best : floor;
    solution.offset[block] = offset;
    solution.height = std::max(solution.height, offset + size);
    const auto place =
        std::upper_bound(placed.begin(), placed.end(), offset,
                         [](int64_t value, const Placed& other) { return value < other.offset; });
    placed.insert(place, {offset, offset + size, begin, end});
  }
  return solution;
}

template <typename Key>
Order OrderBy(const Problem& problem, Key key) {
  Order order(problem.count());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  return order;
}

// Largest first, by one measure or another, and in the order of time.
std::vector<Order> Orders(const Problem& problem) {
  const auto& begin = problem.begin;
  const auto& end = problem.end;
  const auto& size = problem.size;
  const auto life = [&](uint32_t i) { return end[i] - begin[i]; };
  std::vector<Order> orders{
      OrderBy(problem, [&](uint32_t i) { return std::pair(size[i], life(i)); }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(life(i), size[i]); }),
      OrderBy(problem, [&](uint32_t i) { return static_cast<Int128>(size[i]) * life(i); }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(-begin[i], size[i]); }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(end[i], size[i]); })};
  // Long-lived blocks nest in each other, the others are best placed by size.
  const int64_t first = *std::min_element(begin.begin(), begin.end());
  const int64_t last = *std::max_element(end.begin(), end.end());
  for (const int64_t part : {2, 4, 8, 16, 32, 64}) {
    orders.push_back(OrderBy(problem, [&](uint32_t i) {
      return life(i) * part >= last - first ? std::pair(life(i), size[i])
                                            : std::pair(int64_t{0}, size[i]);
    }));
  }
  return orders;
}

// --- Exact search
// ---------------------------------------------------------------------------------

// Depth first over packings in which blocks are placed in ascending order of offset, each on top of
// all that it meets: every packing can be pushed down into one of these. A branch ends where some
// section of time can no longer keep below the height wanted, or where another block would have
// fitted under the one placed.
class ExactSearch {
 public:
  // Looks for packings lower than `height`; `steps` is what is left of the limit.
  ExactSearch(const Problem& problem, int64_t height, int64_t& steps)
      : problem_(problem), height_(height), steps_(steps) {
    std::vector<int64_t> times;
    for (size_t i = 0; i < problem.count(); ++i) {
      times.push_back(problem.begin[i]);
      times.push_back(problem.end[i]);
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    const auto section = [&](int64_t time) {
      return static_cast<size_t>(std::lower_bound(times.begin(), times.end(), time) -
                                 times.begin());
    };
    skyline_.assign(times.size(), 0);
    left_.assign(times.size(), 0);
    for (size_t i = 0; i < problem.count(); ++i) {
      first_.push_back(section(problem.begin[i]));
      last_.push_back(section(problem.end[i]));
      for (size_t s = first_[i]; s < last_[i]; ++s) left_[s] += problem.size[i];
      unplaced_.push_back(static_cast<uint32_t>(i));
    }
    // Larger blocks are tried first.
    std::stable_sort(unplaced_.begin(), unplaced_.end(), [&](uint32_t a, uint32_t b) {
      return static_cast<Int128>(problem.size[a]) * (problem.end[a] - problem.begin[a]) >
             static_cast<Int128>(problem.size[b]) * (problem.end[b] - problem.begin[b]);
    });
    offset_.assign(problem.count(), 0);
  }

  // The first packing found that is lower; its height is `best.height` as before if there is none.
  Solution Run() {
    Descend(0);
    return std::move(best_);
  }

 private:
  struct Candidate {
    uint32_t block;
    int64_t offset;
  };

  // True when the search is over: found, or out of steps.
  bool Descend(int64_t floor) {
    if (unplaced_.empty()) {
      best_.offset = offset_;
      best_.height = *std::max_element(skyline_.begin(), skyline_.end());
      return true;
    }
    steps_ -= static_cast<int64_t>(skyline_.size());
    if (steps_ < 0) return true;
    for (size_t s = 0; s < skyline_.size(); ++s) {
      if (left_[s] > 0 && std::max(skyline_[s], floor) + left_[s] >= height_) return false;
    }
    std::vector<Candidate> candidates;
    int64_t lowest_top = std::numeric_limits<int64_t>::max();
    for (const uint32_t block : unplaced_) {
      int64_t offset = floor;
      steps_ -= static_cast<int64_t>(last_[block] - first_[block]);
      for (size_t s = first_[block]; s < last_[block]; ++s) {
        offset = std::max(offset, skyline_[s]);
      }
      candidates.push_back({block, offset});
      lowest_top = std::min(lowest_top, offset + problem_.size[block]);
    }
    std::erase_if(candidates, [&](const Candidate& c) {
      return problem_.size[c.block] > 0 && c.offset >= lowest_top;
    });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.offset < b.offset; });
    for (const Candidate& candidate : candidates) {
      const uint32_t block = candidate.block;
      const auto at = std::find(unplaced_.begin(), unplaced_.end(), block) - unplaced_.begin();
      std::vector<int64_t> covered(skyline_.begin() + static_cast<std::ptrdiff_t>(first_[block]),
                                   skyline_.begin() + static_cast<std::ptrdiff_t>(last_[block]));
      const int64_t top = candidate.offset + problem_.size[block];
      for (size_t s = first_[block]; s < last_[block]; ++s) {
        skyline_[s] = top;
        left_[s] -= problem_.size[block];
      }
      unplaced_.erase(unplaced_.begin() + at);
      offset_[block] = candidate.offset;
      if (Descend(candidate.offset)) return true;
      unplaced_.insert(unplaced_.begin() + at, block);
      for (size_t s = first_[block]; s < last_[block]; ++s) left_[s] += problem_.size[block];
      std::copy(covered.begin(), covered.end(),
                skyline_.begin() + static_cast<std::ptrdiff_t>(first_[block]));
    }
    return false;
  }

  const Problem& problem_;
  const int64_t height_;
  int64_t& steps_;
  std::vector<size_t> first_, last_;  // sections of each block, half-open
  std::vector<int64_t> skyline_;      // by section: the top of what is placed
  std::vector<int64_t> left_;         // by section: the sum of what is not
  std::vector<uint32_t> unplaced_;
  std::vector<int64_t> offset_;
  Solution best_;
};

// --- All together
// ---------------------------------------------------------------------------------

void Keep(Solution& best, Solution found) {
  if (found.height < best.height) best = std::move(found);
}

// A heuristic that learns: blocks that stick out come first the next time. In turn these are all
// that reach above the bound, and those that reach as high as its best packing.
struct Improver {
  Order order;
  Gap rule;
  int64_t height = std::numeric_limits<int64_t>::max();
  bool all = true;

  Solution Next(const Problem& problem, int64_t bound, int64_t& steps) {
    Solution found = Place(problem, order, rule, steps);
    const int64_t limit = all ? bound : std::max(bound, height - 1);
    std::stable_partition(order.begin(), order.end(), [&](uint32_t block) {
      return found.offset[block] + problem.size[block] > limit;
    });
    height = std::min(height, found.height);
    all = !all;
    return found;
  }
};

// Swaps two blocks of the order at a time, one of which holds the highest block up, and keeps what
// is not worse: hill climbing.
class Climber {
 public:
  Climber(const Problem& problem, Order order, Gap rule, int64_t& steps)
      : problem_(problem), order_(std::move(order)), rule_(rule), steps_(steps) {
    current_ = Place(problem, order_, rule, steps);
    meet_.resize(problem.count());
    for (uint32_t a = 0; a < problem.count(); ++a) {
      for (uint32_t b = 0; b < problem.count(); ++b) {
        if (a != b && problem.Meet(a, b)) meet_[a].push_back(b);
      }
    }
    steps_ -= static_cast<int64_t>(problem.count() * problem.count());
  }

  // The order found. Stops at `bound`, or when there are no steps left.
  Order Run(int64_t bound) {
    std::vector<size_t> place(order_.size());  // of each block in the order
    while (current_.height > bound && steps_ > 0) {
      const std::vector<uint32_t> tower = Tower();
      const uint32_t one = Draw(tower);
      if (meet_[one].empty()) break;
      const uint32_t other = Draw(meet_[one]);
      for (size_t i = 0; i < order_.size(); ++i) place[order_[i]] = i;
      std::swap(order_[place[one]], order_[place[other]]);
      Solution found = Place(problem_, order_, rule_, steps_);
      if (found.height <= current_.height) {
        current_ = std::move(found);
      } else {
        std::swap(order_[place[one]], order_[place[other]]);
      }
    }
    return std::move(order_);
  }

 private:
  uint32_t Draw(const std::vector<uint32_t>& blocks) { return blocks[random_() % blocks.size()]; }

  // The highest blocks and what they rest on, down to the ground.
  std::vector<uint32_t> Tower() {
    std::vector<uint32_t> tower;
    std::vector<bool> inside(problem_.count());
    for (uint32_t block = 0; block < problem_.count(); ++block) {
      if (current_.offset[block] + problem_.size[block] < current_.height) continue;
      tower.push_back(block);
      inside[block] = true;
    }
    for (size_t i = 0; i < tower.size(); ++i) {
      steps_ -= static_cast<int64_t>(meet_[tower[i]].size());
      for (const uint32_t below : meet_[tower[i]]) {
        const int64_t top = current_.offset[below] + problem_.size[below];
        if (inside[below] || top != current_.offset[tower[i]]) continue;
        tower.push_back(below);
        inside[below] = true;
      }
    }
    return tower;
  }

  const Problem& problem_;
  Order order_;
  const Gap rule_;
  int64_t& steps_;
  Solution current_;
  std::vector<std::vector<uint32_t>> meet_;
  std::mt19937 random_{1};
};

// Climbs with the blocks of a thousandth of the bound and more: the others fit in between, or cost
// next to nothing on top.
Solution Climb(const Problem& problem, const Order& order, Gap rule, int64_t bound,
               int64_t& steps) {
  Problem large;
  Order large_order, numbers, rest;
  for (const uint32_t block : order) {
    if (problem.size[block] * 1000 < bound) {
      rest.push_back(block);
      continue;
    }
    large.begin.push_back(problem.begin[block]);
    large.end.push_back(problem.end[block]);
    large.size.push_back(problem.size[block]);
    large_order.push_back(static_cast<uint32_t>(large_order.size()));
    numbers.push_back(block);
  }
  Order found;
  for (const uint32_t block : Climber(large, large_order, rule, steps).Run(BoundOf(large))) {
    found.push_back(numbers[block]);
  }
  found.insert(found.end(), rest.begin(), rest.end());
  return Place(problem, found, rule, steps);
}

Solution Solve(const Problem& problem, const PackingOptions& options, int64_t& steps) {
  const int64_t bound = BoundOf(problem);
  const int64_t enough = bound + bound * options.tolerance / 1000;
  std::vector<Improver> improvers;
  for (const Order& order : Orders(problem)) {
    for (const Gap rule : {Gap::kLowest, Gap::kTightest}) improvers.push_back({order, rule});
  }
  Solution best;
  Order best_order;
  Gap best_rule = Gap::kLowest;
  int64_t left = steps / 2;
  steps -= left;
  do {
    for (Improver& improver : improvers) {
      if (best.height <= enough) break;
      const Order order = improver.order;
      Solution found = improver.Next(problem, bound, left);  // the first round is for free
      if (found.height >= best.height) continue;
      best = std::move(found);
      best_order = order;
      best_rule = improver.rule;
    }
  } while (best.height > enough && left > 0);
  steps += std::max(left, int64_t{0});
  if (best.height > enough && steps > 0) {
    left = steps / 2;
    steps -= left;
    Keep(best, Climb(problem, best_order, best_rule, bound, left));
    steps += std::max(left, int64_t{0});
  }
  // What would be the optimum first, then anything lower than what there is.
  for (const int64_t height : {bound + 1, best.height}) {
    if (best.height <= enough || steps <= 0) break;
    int64_t share = steps / 2;
    steps -= share;
    Keep(best, ExactSearch(problem, height, share).Run());
    steps += std::max(share, int64_t{0});
  }
  return best;
}

}  // namespace

Packing Pack(std::span<const LiveInterval> intervals, const PackingOptions& options) {
  SPILLWAY_CHECK(options.granularity > Bytes(0));
  Packing packing;
  packing.offsets.resize(intervals.size());
  if (intervals.empty()) return packing;
  int64_t first = intervals[0].begin, last = intervals[0].end;
  for (const LiveInterval& interval : intervals) {
    SPILLWAY_CHECK(interval.begin < interval.end && interval.size >= Bytes(0));
    first = std::min(first, interval.begin);
    last = std::max(last, interval.end);
  }
  const auto granules = [&](size_t i) {
    return RoundUp(std::max(intervals[i].size, Bytes(1)), options.granularity).count() /
           options.granularity.count();
  };
  const auto place = [&](size_t i, int64_t offset) {
    packing.offsets[i] = offset * options.granularity;
    packing.height = std::max(packing.height, (offset + granules(i)) * options.granularity);
  };

  int64_t bottom = 0;
  std::vector<size_t> others;
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].begin == first && intervals[i].end == last) {
      place(i, bottom);
      bottom += granules(i);
    } else {
      others.push_back(i);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [&](size_t a, size_t b) { return intervals[a].begin < intervals[b].begin; });
  packing.bound = bottom * options.granularity;
  int64_t steps = options.steps;
  for (size_t next = 0; next < others.size();) {
    Problem problem;
    const size_t begin = next;
    int64_t reach = intervals[others[begin]].end;
    for (; next < others.size() && (next == begin || intervals[others[next]].begin < reach);
         ++next) {
      const LiveInterval& interval = intervals[others[next]];
      reach = std::max(reach, interval.end);
      problem.begin.push_back(interval.begin);
      problem.end.push_back(interval.end);
      problem.size.push_back(granules(others[next]));
    }
    const Solution solution = Solve(problem, options, steps);
    for (size_t i = begin; i < next; ++i) place(others[i], bottom + solution.offset[i - begin]);
    packing.bound = std::max(packing.bound, (bottom + BoundOf(problem)) * options.granularity);
  }
  return packing;
}

std::vector<LiveInterval> IntervalsOf(const AllocationLog& log) {
  const auto last = static_cast<int64_t>(log.steps().size());
  std::vector<LiveInterval> intervals(log.blocks());
  for (int64_t i = 0; i < last; ++i) {
    const AllocationStep& step = log.steps()[static_cast<size_t>(i)];
    if (step.free) {
      intervals[step.block].end = i;
    } else {
      intervals[step.block] = {i, last, step.size};
    }
  }
  return intervals;
}

}  // namespace spillway
