#include "sim/alloc/packing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
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

// Looks for a packing below a height by guided ejection: blocks that have no place yet are put, the
// largest first, where the blocks in the way weigh least; these are thrown out and look for a place
// in their turn. A block that had to throw others out weighs more from then on, so that the hard
// ones settle. After Nagata and Braysy's heuristic for routing problems (2009).
class Ejector {
 public:
  enum class Weight : uint8_t { kArea, kRootOfArea, kOne };

  // No block lies below its entry of `floor`. REQUIRES: each fits between that and `height`.
  Ejector(const Problem& problem, const std::vector<int64_t>& floor, int64_t height, Weight weight,
          uint32_t seed)
      : problem_(problem),
        floor_(floor),
        height_(height),
        rank_(problem.count()),
        offset_(problem.count(), -1),
        random_(seed) {
    const auto life = [&](uint32_t i) { return problem.end[i] - problem.begin[i]; };
    by_size_ = OrderBy(problem, [&](uint32_t i) { return std::pair(problem.size[i], life(i)); });
    double largest = 1;
    const auto area = [&](uint32_t i) {
      return static_cast<double>(problem.size[i]) * static_cast<double>(life(i));
    };
    for (uint32_t i = 0; i < problem.count(); ++i) largest = std::max(largest, area(i));
    for (uint32_t i = 0; i < problem.count(); ++i) {
      rank_[by_size_[i]] = i;
      homeless_.push(i);
      const double share = area(i) / largest;
      first_weight_.push_back(
          static_cast<int64_t>(kHeaviest * (weight == Weight::kArea         ? share
                                            : weight == Weight::kRootOfArea ? std::sqrt(share)
                                                                            : 0.001)) +
          10);
    }
    weight_ = first_weight_;
  }

  // True when all have a place, false when out of `steps`.
  bool Run(int64_t& steps) {
    while (!homeless_.empty() && steps > 0) {
      steps -= static_cast<int64_t>(bottoms_.size());
      const uint32_t block = by_size_[homeless_.top()];
      homeless_.pop();
      const Choice choice = Choose(block);
      if (choice.weight > 0) {
        weight_[block] += first_weight_[block] / 10;
        ThrowOut(block, choice.offset);
      }
      offset_[block] = choice.offset;
      Insert(bottoms_, choice.offset, block);
      Insert(tops_, choice.offset + problem_.size[block], block);
    }
    return homeless_.empty();
  }

  // By block. REQUIRES: `Run` returned true.
  const std::vector<int64_t>& offsets() const { return offset_; }

 private:
  static constexpr double kHeaviest = 1 << 24;

  struct Edge {
    int64_t at;
    int64_t begin, end;  // of its block
    uint32_t block;
  };
  struct Weighted {
    int64_t at;
    int64_t weight;
  };
  struct Choice {
    int64_t offset;
    int64_t weight;  // of what is in the way
  };

  bool Meets(const Edge& edge, uint32_t block) const {
    return edge.begin < problem_.end[block] && problem_.begin[block] < edge.end;
  }

  void Insert(std::vector<Edge>& edges, int64_t at, uint32_t block) {
    const Edge edge{at, problem_.begin[block], problem_.end[block], block};
    edges.insert(std::upper_bound(edges.begin(), edges.end(), edge,
                                  [](const Edge& a, const Edge& b) { return a.at < b.at; }),
                 edge);
  }
  static void Erase(std::vector<Edge>& edges, int64_t at, uint32_t block) {
    auto edge = std::lower_bound(edges.begin(), edges.end(), at,
                                 [](const Edge& a, int64_t value) { return a.at < value; });
    while (edge->block != block) ++edge;
    edges.erase(edge);
  }

  // The lowest free place, else one of those where the least is in the way. Only places that touch
  // another block or an end are worth a look.
  Choice Choose(uint32_t block) {
    const int64_t size = problem_.size[block], lowest = floor_[block], highest = height_ - size;
    // What lies at `at` or below is met from the first of these on, and no more from the second.
    met_.clear();
    passed_.clear();
    for (const Edge& edge : bottoms_) {
      if (Meets(edge, block)) met_.push_back({edge.at - size, weight_[edge.block]});
    }
    for (const Edge& edge : tops_) {
      if (Meets(edge, block)) passed_.push_back({edge.at, weight_[edge.block]});
    }
    Choice best{lowest, std::numeric_limits<int64_t>::max()};
    int64_t weight = 0;
    uint32_t equals = 0;
    size_t met = 0, passed = 0;
    const auto look = [&](int64_t at) {  // at ascending offsets
      while (met < met_.size() && met_[met].at < at) weight += met_[met++].weight;
      while (passed < passed_.size() && passed_[passed].at <= at) {
        weight -= passed_[passed++].weight;
      }
      if (weight < best.weight) {
        best = {at, weight};
        equals = 1;
      } else if (weight == best.weight && random_() % ++equals == 0) {
        best.offset = at;
      }
      return weight == 0;
    };
    if (look(lowest)) return best;
    int64_t last = lowest;
    for (size_t i = 0, j = 0; i < met_.size() || j < passed_.size();) {
      const bool first = j == passed_.size() || (i < met_.size() && met_[i].at <= passed_[j].at);
      const int64_t at = first ? met_[i++].at : passed_[j++].at;
      if (at > highest) break;
      if (at > last && look(at)) return best;
      last = std::max(last, at);
    }
    if (highest > last) look(highest);
    return best;
  }

  void ThrowOut(uint32_t block, int64_t offset) {
    out_.clear();
    for (const Edge& edge : bottoms_) {
      if (edge.at >= offset + problem_.size[block]) break;
      if (Meets(edge, block) && edge.at + problem_.size[edge.block] > offset) {
        out_.push_back(edge.block);
      }
    }
    for (const uint32_t other : out_) {
      Erase(bottoms_, offset_[other], other);
      Erase(tops_, offset_[other] + problem_.size[other], other);
      homeless_.push(rank_[other]);
    }
  }

  const Problem& problem_;
  const std::vector<int64_t>& floor_;  // by block
  const int64_t height_;
  Order by_size_;               // the largest first
  std::vector<uint32_t> rank_;  // by block: its place in that
  std::vector<int64_t> offset_;
  std::vector<int64_t> first_weight_, weight_;  // by block
  std::vector<Edge> bottoms_, tops_;            // of what is placed, in ascending order
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> homeless_;  // ranks
  std::vector<Weighted> met_, passed_;
  std::vector<uint32_t> out_;
  std::mt19937 random_;
};

// A problem in two parts: small blocks, packed at the bottom, and large ones that lie above them.
// Small blocks are many, most of them outlive the large ones, and packed by themselves they leave
// no gaps that the large ones could not follow.
struct Halves {
  std::vector<uint32_t> small, large;  // the blocks in each
  Problem upper;                       // the large ones
  std::vector<int64_t> lower_offset;   // of the small ones
  std::vector<int64_t> floor;          // by large block: the top of the small ones that it meets
  int64_t bound = 0;                   // no packing above this lower half is lower
};

Problem Part(const Problem& problem, const std::vector<uint32_t>& blocks) {
  Problem part;
  for (const uint32_t block : blocks) {
    part.begin.push_back(problem.begin[block]);
    part.end.push_back(problem.end[block]);
    part.size.push_back(problem.size[block]);
  }
  return part;
}

// Blocks smaller than `size` are small, and those that live for `life` or longer.
Halves Split(const Problem& problem, int64_t size, int64_t life, int64_t& steps) {
  Halves halves;
  for (uint32_t block = 0; block < problem.count(); ++block) {
    const bool small =
        problem.size[block] < size || problem.end[block] - problem.begin[block] >= life;
    (small ? halves.small : halves.large).push_back(block);
  }
  halves.upper = Part(problem, halves.large);
  halves.floor.assign(halves.large.size(), 0);
  if (halves.small.empty()) {
    halves.bound = BoundOf(problem);
    return halves;
  }
  const Problem lower = Part(problem, halves.small);
  std::vector<int64_t> times = problem.begin;
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto section = [&](int64_t time) {  // the first that begins at that time or later
    return std::lower_bound(times.begin(), times.end(), time) - times.begin();
  };
  std::vector<int64_t> load(times.size());  // by section: the sum of large blocks
  for (size_t i = 0; i < halves.large.size(); ++i) {
    const auto end = section(halves.upper.end[i]);
    for (auto s = section(halves.upper.begin[i]); s < end; ++s) {
      load[static_cast<size_t>(s)] += halves.upper.size[i];
    }
  }
  halves.bound = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> best;  // the skyline of the packing that leaves most room
  for (const Order& order : Orders(lower)) {
    for (const Gap rule : {Gap::kLowest, Gap::kTightest}) {
      const Solution found = Place(lower, order, rule, steps);
      std::vector<int64_t> skyline(times.size());
      for (size_t i = 0; i < halves.small.size(); ++i) {
        const auto end = section(lower.end[i]);
        for (auto s = section(lower.begin[i]); s < end; ++s) {
          int64_t& top = skyline[static_cast<size_t>(s)];
          top = std::max(top, found.offset[i] + lower.size[i]);
        }
      }
      int64_t bound = 0;
      for (size_t s = 0; s < times.size(); ++s) bound = std::max(bound, skyline[s] + load[s]);
      if (bound >= halves.bound) continue;
      halves.bound = bound;
      halves.lower_offset = found.offset;
      best = std::move(skyline);
    }
  }
  for (size_t i = 0; i < halves.large.size(); ++i) {
    const auto end = section(halves.upper.end[i]);
    for (auto s = section(halves.upper.begin[i]); s < end; ++s) {
      halves.floor[i] = std::max(halves.floor[i], best[static_cast<size_t>(s)]);
    }
  }
  return halves;
}

// Guided ejection, from the beginning each time, of the large blocks of several splits by turns.
class Ejection {
 public:
  Ejection(const Problem& problem, int64_t bound, int64_t& steps) : problem_(problem) {
    const int64_t first = *std::min_element(problem.begin.begin(), problem.begin.end());
    const int64_t last = *std::max_element(problem.end.begin(), problem.end.end());
    for (const int64_t life : {last - first + 1, (last - first + 1) / 2}) {
      for (const int64_t part : {1, 2, 0}) {
        splits_.push_back(Split(problem, bound * part / 1000, life, steps));
      }
    }
  }

  // A packing that is no higher than `height`, or whatever is worse when the steps run out.
  Solution Run(int64_t height, int64_t& steps) {
    constexpr std::array kWeights{Ejector::Weight::kArea, Ejector::Weight::kRootOfArea,
                                  Ejector::Weight::kOne};
    const int64_t share = steps / 32 + 1;
    for (uint32_t round = 0; steps > 0; ++round) {
      const Halves& halves = splits_[round % splits_.size()];
      steps -= static_cast<int64_t>(problem_.count());
      if (!Fits(halves, height)) continue;
      const auto weight = kWeights[round / splits_.size() % kWeights.size()];
      Ejector ejector(halves.upper, halves.floor, height, weight, round + 1);
      int64_t left = std::min(share, steps);
      steps -= left;
      const bool found = ejector.Run(left);
      steps += std::max(left, int64_t{0});
      if (found) return Join(halves, ejector.offsets());
    }
    return {};
  }

 private:
  static bool Fits(const Halves& halves, int64_t height) {
    if (halves.bound > height) return false;
    for (size_t i = 0; i < halves.large.size(); ++i) {
      if (halves.floor[i] + halves.upper.size[i] > height) return false;
    }
    return true;
  }

  Solution Join(const Halves& halves, const std::vector<int64_t>& upper) const {
    Solution solution{std::vector<int64_t>(problem_.count()), 0};
    const auto place = [&](uint32_t block, int64_t offset) {
      solution.offset[block] = offset;
      solution.height = std::max(solution.height, offset + problem_.size[block]);
    };
    for (size_t i = 0; i < halves.small.size(); ++i) {
      place(halves.small[i], halves.lower_offset[i]);
    }
    for (size_t i = 0; i < halves.large.size(); ++i) place(halves.large[i], upper[i]);
    return solution;
  }

  const Problem& problem_;
  std::vector<Halves> splits_;
};

// The heuristics once, then again and again with what they have learnt, until `enough`.
Solution Improve(const Problem& problem, int64_t bound, int64_t enough, int64_t& steps) {
  std::vector<Improver> improvers;
  for (const Order& order : Orders(problem)) {
    for (const Gap rule : {Gap::kLowest, Gap::kTightest}) improvers.push_back({order, rule});
  }
  Solution best;
  do {
    for (Improver& improver : improvers) {
      if (best.height <= enough) break;
      Keep(best, improver.Next(problem, bound, steps));  // the first round is for free
    }
  } while (best.height > enough && steps > 0);
  return best;
}

Solution Solve(const Problem& problem, const PackingOptions& options, int64_t& steps) {
  const int64_t bound = BoundOf(problem);
  const int64_t enough = bound + bound * options.tolerance / 1000;
  Solution best;
  // Runs a search with a part of the steps, and takes off what it used.
  const auto spend = [&](int64_t part, const auto& search) {
    int64_t left = part;
    Keep(best, search(left));
    steps -= part - left;
  };
  const int64_t all = steps;
  spend(all / 8, [&](int64_t& left) { return Improve(problem, bound, enough, left); });
  if (best.height > enough && steps > 0) {
    std::optional<Ejection> ejection;
    const auto eject = [&](int64_t height, int64_t part) {
      spend(part, [&](int64_t& left) {
        if (!ejection) ejection.emplace(problem, bound, left);
        return ejection->Run(height, left);
      });
      return best.height <= height;
    };
    // Most of the effort goes where one percent is missed: there, then half way there.
    const int64_t near = std::max(enough, bound + bound / 100);
    if (best.height > near && !eject(near, all / 2)) {
      for (int i = 0; i < 4; ++i) eject(near + (best.height - near) / 2, all / 32);
    }
    if (best.height <= near) {
      while (best.height > enough && eject(enough + (best.height - enough) / 2, all / 32)) continue;
    }
  }
  // What would be the optimum first, then anything lower than what there is.
  for (const int64_t height : {bound + 1, best.height}) {
    if (best.height <= enough || steps <= 0) break;
    spend(all / 32, [&](int64_t& left) { return ExactSearch(problem, height, left).Run(); });
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
