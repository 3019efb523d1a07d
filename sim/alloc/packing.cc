#include "sim/alloc/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
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
Solution Place(const Problem& problem, const Order& order, Gap rule) {
  Solution solution{std::vector<int64_t>(problem.count(), 0), 0};
  std::vector<uint32_t> by_offset;  // placed blocks
  for (const uint32_t block : order) {
    const int64_t size = problem.size[block];
    int64_t floor = 0, best = -1, best_room = std::numeric_limits<int64_t>::max();
    for (const uint32_t other : by_offset) {
      if (!problem.Meet(block, other)) continue;
      const int64_t room = solution.offset[other] - floor;
      if (room >= size && room < best_room) {
        best = floor;
        best_room = room;
        if (rule == Gap::kLowest) break;
      }
      floor = std::max(floor, solution.offset[other] + problem.size[other]);
    }
    const int64_t offset = best >= 0 ? best : floor;
    solution.offset[block] = offset;
    solution.height = std::max(solution.height, offset + size);
    const auto place = std::upper_bound(
        by_offset.begin(), by_offset.end(), offset,
        [&](int64_t value, uint32_t other) { return value < solution.offset[other]; });
    by_offset.insert(place, block);
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
  const auto& [begin, end, size] = problem;
  const auto life = [&](uint32_t i) { return end[i] - begin[i]; };
  return {OrderBy(problem, [&](uint32_t i) { return std::pair(size[i], life(i)); }),
          OrderBy(problem, [&](uint32_t i) { return std::pair(life(i), size[i]); }),
          OrderBy(problem, [&](uint32_t i) { return static_cast<Int128>(size[i]) * life(i); }),
          OrderBy(problem, [&](uint32_t i) { return std::pair(-begin[i], size[i]); }),
          OrderBy(problem, [&](uint32_t i) { return std::pair(end[i], size[i]); })};
}

// --- Exact search
// ---------------------------------------------------------------------------------

// Depth first over packings in which blocks are placed in ascending order of offset, each on top of
// all that it meets: every packing can be pushed down into one of these. A branch ends where some
// section of time can no longer keep below the height wanted, or where another block would have
// fitted under the one placed.
class ExactSearch {
 public:
  // Looks for packings lower than `height`; `nodes` is what is left of the limit.
  ExactSearch(const Problem& problem, int64_t height, int64_t& nodes)
      : problem_(problem), height_(height), nodes_(nodes) {
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

  // True when the search is over: found, or out of nodes.
  bool Descend(int64_t floor) {
    if (unplaced_.empty()) {
      best_.offset = offset_;
      best_.height = *std::max_element(skyline_.begin(), skyline_.end());
      return true;
    }
    if (--nodes_ < 0) return true;
    for (size_t s = 0; s < skyline_.size(); ++s) {
      if (left_[s] > 0 && std::max(skyline_[s], floor) + left_[s] >= height_) return false;
    }
    std::vector<Candidate> candidates;
    int64_t lowest_top = std::numeric_limits<int64_t>::max();
    for (const uint32_t block : unplaced_) {
      int64_t offset = floor;
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
  int64_t& nodes_;
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

// Moves the blocks that reach above the bound to the front, again and again.
Solution Improve(const Problem& problem, Order order, Gap rule, int64_t bound, int rounds) {
  Solution best;
  for (int round = 0; round < rounds && best.height > bound; ++round) {
    const Solution found = Place(problem, order, rule);
    const int64_t limit = std::max(bound, best.height - 1);
    std::stable_partition(order.begin(), order.end(), [&](uint32_t block) {
      return found.offset[block] + problem.size[block] > (round % 2 == 0 ? bound : limit);
    });
    Keep(best, found);
  }
  return best;
}

Solution Solve(const Problem& problem, const PackingOptions& options, int64_t& nodes) {
  const int64_t bound = BoundOf(problem);
  Solution best;
  const std::vector<Order> orders = Orders(problem);
  for (const int rounds : {1, options.improvements}) {
    for (const Order& order : orders) {
      for (const Gap rule : {Gap::kLowest, Gap::kTightest}) {
        if (best.height > bound) Keep(best, Improve(problem, order, rule, bound, rounds));
      }
    }
  }
  // What would be the optimum first, then anything lower than what there is.
  for (const int64_t height : {bound + 1, best.height}) {
    if (best.height <= bound || nodes <= 0) break;
    int64_t share = nodes / 2;
    nodes -= share;
    Keep(best, ExactSearch(problem, height, share).Run());
    nodes += std::max(share, int64_t{0});
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
  int64_t nodes = options.nodes;
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
    const Solution solution = Solve(problem, options, nodes);
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
