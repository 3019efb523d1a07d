#include "sim/packing/packing.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "sim/packing/exact.h"
#include "sim/packing/neighbourhood.h"
#include "sim/packing/problem.h"
#include "traces/base/error.h"

namespace spillway::sim {
namespace packing {
namespace {

void Keep(Solution& best, Solution found) {
  if (found.height < best.height) best = std::move(found);
}

// The steps of all heuristics together. They suffice for all heuristics on tens of thousands of
// blocks, and for some heuristics on hundreds of thousands.
constexpr int64_t kConstructing = 4'000'000'000;

// Returns the best result of the heuristics. Stops at a packing no higher than `enough`. The steps
// do not count.
Solution Construct(const Problem& problem, int64_t enough) {
  Solution best;
  int64_t steps = kConstructing;
  for (const Order& order : Orders(problem)) {
    for (const Gap rule : {Gap::kLowest, Gap::kTightest}) {
      if (best.height <= enough || steps <= 0) return best;
      Keep(best, Place(problem, order, rule, steps));
    }
  }
  return best;
}

// Heights of a part's packing, in granules.
struct Goals {
  int64_t memory = 0;               // above it, the search does not stop
  std::array<int64_t, 3> enough{};  // at once, after a 64th and after a quarter of the steps
  std::array<int64_t, 2> rungs{};   // to be reached one after the other, the higher first
};

// Walks a ladder of searches: one round after another, each with twice the steps. No rung of the
// ladder depends on `goals.memory`, which only says where the walk may end. So whatever fits into
// some memory also fits into more memory. Returns the lowest packing found, `placed` if that is
// lower.
Solution Solve(const Problem& problem, const Solution& placed, const Goals& goals, int64_t steps) {
  const int64_t all = steps;
  const auto enough = [&] {
    const int64_t spent = all - steps;
    return std::min(goals.memory, goals.enough[spent <= all / 64 ? 0 : spent <= all / 4 ? 1 : 2]);
  };
  const int64_t bound = BoundOf(problem);
  Solution best = Construct(problem, enough());
  Keep(best, placed);
  int64_t least = bound;  // no packing is lower
  // Looks for a packing no higher than `goal`. After each failure, the next height is halfway
  // between the failure and the best packing.
  const auto approach = [&](int64_t goal, int64_t part, const auto& search) {
    int64_t missed = goal - 1, height = goal;
    for (int misses = 0; misses < 4 && steps > 0 && best.height > std::max(missed + 1, enough());
         height = missed + (best.height - missed) / 2) {
      const int64_t share = std::min(steps, misses == 0 ? part : part / 4);
      int64_t left = share;
      Keep(best, search(height, left));
      steps -= share - left;
      if (best.height <= height) continue;
      missed = height;
      if (least <= height) ++misses;  // otherwise the failure was a proof
    }
  };
  const auto exact = [&](int64_t height, int64_t& left) {
    Solution found = SearchExactly(problem, height + 1, left);
    if (left > 0 && found.offset.empty()) least = std::max(least, height + 1);
    return found;
  };
  NeighbourhoodSearch neighbourhoods(problem, bound);
  const auto again = [&](int64_t height, int64_t& left) {
    return neighbourhoods.Run(height, left);
  };
  for (int64_t part = all / 1024 + 1; part <= all && steps > 0; part *= 2) {
    if (problem.count() <= kLargestExact) approach(least, part, exact);
    if (best.height <= std::max(least, enough())) break;
    const auto rung =
        std::ranges::find_if(goals.rungs, [&](int64_t height) { return height < best.height; });
    approach(rung == goals.rungs.end() ? least : std::max(least, *rung), part, again);
  }
  return best;
}

// The blocks of a problem: those that are live all the time, and the others by stretches of time
// that no other block connects.
struct Division {
  Order always;
  std::vector<Order> parts;  // each in the order of beginnings
};

Division Divide(const Problem& problem) {
  const Problem times = Compress(problem);
  const int64_t last =
      times.count() == 0 ? 0 : *std::max_element(times.end.begin(), times.end.end());
  Division division;
  int64_t reach = std::numeric_limits<int64_t>::min();
  for (const uint32_t i : OrderBy(problem, [&](uint32_t block) { return -problem.begin[block]; })) {
    if (times.begin[i] == 0 && times.end[i] == last) {
      division.always.push_back(i);
      continue;
    }
    if (problem.begin[i] >= reach) division.parts.emplace_back();
    division.parts.back().push_back(i);
    reach = std::max(reach, problem.end[i]);
  }
  std::ranges::sort(division.always);
  return division;
}

// Takes the blocks `always` out of a packing: blocks above them move down.
void TakeOut(const Problem& problem, const Order& always, std::vector<int64_t>& offsets) {
  std::map<int64_t, int64_t> below;  // offset -> size of the blocks of `always` up to there
  for (const uint32_t i : always) below[offsets[i]] = problem.size[i];
  int64_t sum = 0;
  for (auto& [offset, size] : below) size = sum += size;
  for (int64_t& offset : offsets) {
    const auto after = below.upper_bound(offset);
    if (after != below.begin()) offset -= std::prev(after)->second;
  }
}

}  // namespace
}  // namespace packing

Packing Pack(std::span<const LiveInterval> intervals, const PackingOptions& options,
             const std::vector<std::vector<Bytes>>& placements) {
  SPILLWAY_CHECK(options.granularity > Bytes(0));
  const int64_t granule = options.granularity.count();
  packing::Problem all;
  for (const LiveInterval& interval : intervals) {
    SPILLWAY_CHECK(interval.begin < interval.end && interval.size >= Bytes(0));
    all.begin.push_back(interval.begin);
    all.end.push_back(interval.end);
    all.size.push_back(RoundUp(std::max(interval.size, Bytes(1)), options.granularity).count() /
                       granule);
  }
  const packing::Division division = packing::Divide(all);
  std::vector<std::vector<int64_t>> placed;
  for (const std::vector<Bytes>& placement : placements) {
    std::vector<int64_t>& offsets = placed.emplace_back();
    for (const Bytes offset : placement) {
      SPILLWAY_CHECK(offset.count() % granule == 0);
      offsets.push_back(offset.count() / granule);
    }
    packing::TakeOut(all, division.always, offsets);
  }
  Packing packing;
  packing.offsets.resize(intervals.size());
  const auto place = [&](uint32_t block, int64_t offset) {
    packing.offsets[block] = offset * options.granularity;
    packing.height = std::max(packing.height, (offset + all.size[block]) * options.granularity);
  };
  int64_t bottom = 0;
  for (const uint32_t block : division.always) {
    place(block, bottom);
    bottom += all.size[block];
  }
  const int64_t bound = packing::BoundOf(all);
  packing.bound = bound * options.granularity;
  // The slack is measured by the height of the whole packing, including the blocks at the bottom.
  const auto above = [&](int64_t thousandths) {
    return bound + bound * thousandths / 1000 - bottom;
  };
  const bool limited = options.memory < Bytes::Unlimited();
  const int64_t memory = std::max(bound, options.memory.count() / granule) - bottom;
  const packing::Goals goals{memory,
                             {above(options.tolerance), above(2 * options.tolerance),
                              limited ? memory : above(2 * options.tolerance)},
                             {above(10), above(5)}};
  const auto others = static_cast<int64_t>(intervals.size() - division.always.size());
  for (const packing::Order& part : division.parts) {
    const packing::Problem problem = packing::Compress(packing::Restrict(all, part));
    packing::Solution best;
    for (const std::vector<int64_t>& offsets : placed) {
      packing::Solution left{{}, 0};
      for (size_t i = 0; i < part.size(); ++i) {
        left.offset.push_back(offsets[part[i]]);
        left.height = std::max(left.height, left.offset[i] + problem.size[i]);
      }
      packing::Keep(best, std::move(left));
    }
    const Int128 share = Int128{options.steps} * static_cast<int64_t>(part.size()) / others;
    best = packing::Solve(problem, std::move(best), goals, static_cast<int64_t>(share));
    for (size_t i = 0; i < part.size(); ++i) place(part[i], bottom + best.offset[i]);
  }
  return packing;
}

}  // namespace spillway::sim
