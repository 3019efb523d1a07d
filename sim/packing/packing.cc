#include "sim/packing/packing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/packing/exact.h"
#include "sim/packing/neighbourhood.h"
#include "sim/packing/problem.h"
#include "traces/base/error.h"

namespace spillway {
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

// Looks for a packing that is no higher than `enough`. Spends most of the effort if the best
// packing is higher than `near`.
Solution Solve(const Problem& problem, int64_t enough, int64_t near, int64_t& steps) {
  const int64_t bound = BoundOf(problem);
  const int64_t all = steps;
  Solution best = Construct(problem, enough);
  // Runs a search with `part` of the steps, subtracts the steps that it used, and returns the rest
  // of the part.
  const auto spend = [&](int64_t part, const auto& search) {
    int64_t left = part;
    Keep(best, search(left));
    steps -= part - left;
    return left;
  };
  // Small problems are solved for good: the search finds the bound, or lowers the height again and
  // again.
  for (int64_t height = bound + 1; best.height > enough && steps > 0; height = best.height) {
    const int64_t before = best.height;
    const int64_t left =
        spend(all / 2048, [&](int64_t& part) { return SearchExactly(problem, height, part); });
    if (left <= 0) break;
    if (height == before && best.height == before) return best;  // no packing is lower
  }
  // If memory is full all the time, a packing at exactly the bound is easier to find than one a
  // little higher, and only this search finds it.
  for (const int64_t height : {bound, enough}) {
    if (best.height <= enough) break;
    const int64_t part = height > bound ? 256 : enough > bound ? 64 : 4;
    spend(all / part, [&](int64_t& left) { return SearchExactly(problem, height + 1, left); });
  }
  if (best.height <= enough || steps <= 0) return best;

  NeighbourhoodSearch neighbourhoods(problem, bound);
  const auto reach = [&](int64_t height, int64_t part) {
    spend(part, [&](int64_t& left) { return neighbourhoods.Run(height, left); });
    return best.height <= height;
  };
  // Looks for a packing that is no higher than `goal`; if that fails, looks halfway between the
  // goal and the best packing, and so on. Repeats this with twice the steps, up to `most`.
  const auto approach = [&](int64_t goal, int64_t most) {
    for (int64_t part = std::max<int64_t>(1, most / 16); best.height > goal && part <= most;
         part *= 2) {
      if (reach(goal, part)) return;
      int64_t missed = goal;
      for (int i = 0; i < 3 && best.height > goal; ++i) {
        const int64_t height = missed + (best.height - missed) / 2;
        if (!reach(height, part / 2)) missed = height;
      }
    }
  };
  approach(near, all / 8);
  if (best.height <= near) approach(enough, all / 64);
  return best;
}

}  // namespace
}  // namespace packing

Packing Pack(std::span<const LiveInterval> intervals, const PackingOptions& options) {
  SPILLWAY_CHECK(options.granularity > Bytes(0));
  Packing packing;
  packing.offsets.resize(intervals.size());
  packing::Problem times;
  for (const LiveInterval& interval : intervals) {
    SPILLWAY_CHECK(interval.begin < interval.end && interval.size >= Bytes(0));
    times.begin.push_back(interval.begin);
    times.end.push_back(interval.end);
    times.size.push_back(interval.size.count());
  }
  times = packing::Compress(times);
  const int64_t last =
      intervals.empty() ? 0 : *std::max_element(times.end.begin(), times.end.end());
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
    if (times.begin[i] == 0 && times.end[i] == last) {
      place(i, bottom);
      bottom += granules(i);
    } else {
      others.push_back(i);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [&](size_t a, size_t b) { return intervals[a].begin < intervals[b].begin; });
  struct Part {
    size_t begin;  // index in `others`
    packing::Problem problem;
  };
  std::vector<Part> parts;
  int64_t bound = bottom;
  for (size_t next = 0; next < others.size();) {
    Part part{next, {}};
    int64_t reach = intervals[others[next]].end;
    for (; next < others.size() && (next == part.begin || intervals[others[next]].begin < reach);
         ++next) {
      const LiveInterval& interval = intervals[others[next]];
      reach = std::max(reach, interval.end);
      part.problem.begin.push_back(interval.begin);
      part.problem.end.push_back(interval.end);
      part.problem.size.push_back(granules(others[next]));
    }
    bound = std::max(bound, bottom + packing::BoundOf(part.problem));
    parts.push_back(std::move(part));
  }
  packing.bound = bound * options.granularity;
  // The slack is measured by the height of the whole packing, including the blocks at the bottom.
  const int64_t memory = std::max(bound, options.memory.count() / options.granularity.count());
  const int64_t enough = std::min(memory, bound + bound * options.tolerance / 1000) - bottom;
  const int64_t near = std::max(enough, bound + bound / 100 - bottom);
  int64_t steps = options.steps;
  for (const Part& part : parts) {
    const packing::Solution solution = packing::Solve(part.problem, enough, near, steps);
    for (size_t i = 0; i < part.problem.count(); ++i) {
      place(others[part.begin + i], bottom + solution.offset[i]);
    }
  }
  return packing;
}

}  // namespace spillway
