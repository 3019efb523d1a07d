#include "sim/packing/problem.h"

#include <bit>
#include <tuple>
#include <utility>

#include "traces/base/units.h"

namespace spillway::sim::packing {

Problem Restrict(const Problem& problem, const Order& blocks) {
  Problem some;
  for (const uint32_t block : blocks) {
    some.begin.push_back(problem.begin[block]);
    some.end.push_back(problem.end[block]);
    some.size.push_back(problem.size[block]);
  }
  return some;
}

Problem Compress(const Problem& problem) {
  std::vector<std::tuple<int64_t, bool, size_t>> changes;  // time, true for a beginning, block
  for (size_t i = 0; i < problem.count(); ++i) {
    changes.emplace_back(problem.begin[i], true, i);
    changes.emplace_back(problem.end[i], false, i);
  }
  std::sort(changes.begin(), changes.end());
  Problem compressed = problem;
  int64_t moment = 0;
  bool ended = false;  // true if a block has ended since the last beginning
  for (const auto& [at, begins, block] : changes) {
    if (begins && ended) ++moment;
    ended = !begins;
    (begins ? compressed.begin : compressed.end)[block] = begins ? moment : moment + 1;
  }
  return compressed;
}

std::vector<int64_t> LoadsOf(const Problem& problem) {
  std::vector<int64_t> loads(1);
  for (size_t i = 0; i < problem.count(); ++i) {
    const auto begin = static_cast<size_t>(problem.begin[i]);
    const auto end = static_cast<size_t>(problem.end[i]);
    loads.resize(std::max(loads.size(), end + 1));
    loads[begin] += problem.size[i];
    loads[end] -= problem.size[i];
  }
  std::partial_sum(loads.begin(), loads.end(), loads.begin());
  return loads;
}

int64_t BoundOf(const Problem& problem) { return std::ranges::max(LoadsOf(Compress(problem))); }

bool IsPacking(const Problem& problem, const Solution& solution) {
  if (solution.offset.size() != problem.count()) return false;
  const auto top = [&](size_t i) { return solution.offset[i] + problem.size[i]; };
  for (size_t i = 0; i < problem.count(); ++i) {
    if (solution.offset[i] < 0 || top(i) > solution.height) return false;
    for (size_t j = 0; j < i; ++j) {
      const bool meet = problem.begin[i] < problem.end[j] && problem.begin[j] < problem.end[i];
      if (meet && solution.offset[i] < top(j) && solution.offset[j] < top(i)) return false;
    }
  }
  return true;
}

namespace {

struct Placed {
  int64_t offset, top, begin, end;
};

// The placed blocks, which can be found by their lifetimes. It is a tree over all blocks in the
// order in which they begin, with the latest end of the placed blocks in each subtree.
class Lifetimes {
 public:
  explicit Lifetimes(const Problem& problem)
      : blocks_(problem.count()),
        leaves_(std::bit_ceil(blocks_ + 1)),
        latest_(2 * leaves_, kNever) {
    const Order order = OrderBy(problem, [&](uint32_t i) { return -problem.begin[i]; });
    leaf_.resize(blocks_);
    for (size_t i = 0; i < blocks_; ++i) {
      leaf_[order[i]] = i;
      begin_.push_back(problem.begin[order[i]]);
    }
    placed_.resize(blocks_);
  }

  void Add(uint32_t block, const Placed& placed) {
    placed_[leaf_[block]] = placed;
    for (size_t node = leaves_ + leaf_[block]; node > 0; node /= 2) {
      latest_[node] = std::max(latest_[node], placed.end);
    }
  }

  // Finds the placed blocks that live in [begin, end), by offset. Subtracts the visited nodes from
  // `steps`.
  void Find(int64_t begin, int64_t end, std::vector<Placed>& met, int64_t& steps) const {
    const auto last =
        static_cast<size_t>(std::lower_bound(begin_.begin(), begin_.end(), end) - begin_.begin());
    met.clear();
    Find(1, 0, leaves_, last, begin, met, steps);
    std::sort(met.begin(), met.end(),
              [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

  void Find(size_t node, size_t first, size_t width, size_t last, int64_t after,
            std::vector<Placed>& met, int64_t& steps) const {
    --steps;
    if (first >= last || latest_[node] <= after) return;
    if (width == 1) {
      met.push_back(placed_[first]);
      return;
    }
    Find(2 * node, first, width / 2, last, after, met, steps);
    Find(2 * node + 1, first + width / 2, width / 2, last, after, met, steps);
  }

  size_t blocks_, leaves_;
  std::vector<int64_t> latest_;  // by node; kNever if no block is placed there
  std::vector<size_t> leaf_;     // by block
  std::vector<int64_t> begin_;   // by leaf
  std::vector<Placed> placed_;
};

}  // namespace

Solution Place(const Problem& problem, const Order& order, Gap rule, int64_t& steps,
               const std::vector<int64_t>& fixed) {
  Solution solution{std::vector<int64_t>(problem.count(), 0), 0};
  Lifetimes lifetimes(problem);
  std::vector<Placed> met;  // placed blocks that are live at the block's time, by offset
  for (const uint32_t block : order) {
    const int64_t begin = problem.begin[block], end = problem.end[block];
    const int64_t size = problem.size[block];
    int64_t floor = 0, best = -1, best_room = std::numeric_limits<int64_t>::max();
    lifetimes.Find(begin, end, met, steps);
    steps -= static_cast<int64_t>(met.size());
    for (const Placed& other : met) {
      const int64_t room = other.offset - floor;
      if (room >= size && room < best_room) {
        best = floor;
        best_room = room;
        if (rule == Gap::kLowest) break;
      }
      floor = std::max(floor, other.top);
    }
    int64_t offset = best >= 0 ? best : floor;
    if (!fixed.empty() && fixed[block] >= 0) offset = fixed[block];
    solution.offset[block] = offset;
    solution.height = std::max(solution.height, offset + size);
    lifetimes.Add(block, {offset, offset + size, begin, end});
  }
  return solution;
}

namespace {

// Returns for each block the largest load of a moment at which it is live.
std::vector<int64_t> PeaksOf(const Problem& problem) {
  const Problem times = Compress(problem);
  const std::vector<int64_t> loads = LoadsOf(times);
  std::vector<int64_t> peaks(problem.count());
  std::vector<int64_t> falling;  // moments before now, each with a larger load than all later ones
  int64_t now = 0;
  for (const uint32_t block : OrderBy(times, [&](uint32_t i) { return -times.end[i]; })) {
    for (; now < times.end[block]; ++now) {
      while (!falling.empty() && loads[falling.back()] <= loads[now]) falling.pop_back();
      falling.push_back(now);
    }
    peaks[block] = loads[*std::ranges::lower_bound(falling, times.begin[block])];
  }
  return peaks;
}

}  // namespace

std::vector<Order> Orders(const Problem& problem) {
  const auto& begin = problem.begin;
  const auto& end = problem.end;
  const auto& size = problem.size;
  const auto life = [&](uint32_t i) { return end[i] - begin[i]; };
  const std::vector<int64_t> peaks = PeaksOf(problem);
  std::vector<Order> orders{
      OrderBy(problem, [&](uint32_t i) { return std::pair(size[i], life(i)); }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(life(i), size[i]); }),
      OrderBy(problem, [&](uint32_t i) { return static_cast<Int128>(size[i]) * life(i); }),
      OrderBy(problem, [&](uint32_t i) { return static_cast<Int128>(size[i]) * peaks[i]; }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(-begin[i], size[i]); }),
      OrderBy(problem, [&](uint32_t i) { return std::pair(end[i], size[i]); })};
  // Long-lived blocks nest in each other; the others are best placed by size.
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

}  // namespace spillway::sim::packing
