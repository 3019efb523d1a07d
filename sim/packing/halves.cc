#include "sim/packing/halves.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace spillway::packing {
namespace {

Problem Part(const Problem& problem, const std::vector<uint32_t>& blocks) {
  Problem part;
  for (const uint32_t block : blocks) {
    part.begin.push_back(problem.begin[block]);
    part.end.push_back(problem.end[block]);
    part.size.push_back(problem.size[block]);
  }
  return part;
}

}  // namespace

Halves Split(const Problem& problem, int64_t size, int64_t& steps) {
  Halves halves;
  for (uint32_t block = 0; block < problem.count(); ++block) {
    (problem.size[block] < size ? halves.small : halves.large).push_back(block);
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

bool Fits(const Halves& halves, int64_t height) {
  if (halves.bound > height) return false;
  for (size_t i = 0; i < halves.large.size(); ++i) {
    if (halves.floor[i] + halves.upper.size[i] > height) return false;
  }
  return true;
}

Solution Join(const Problem& problem, const Halves& halves, const std::vector<int64_t>& upper) {
  Solution solution{std::vector<int64_t>(problem.count()), 0};
  const auto place = [&](uint32_t block, int64_t offset) {
    solution.offset[block] = offset;
    solution.height = std::max(solution.height, offset + problem.size[block]);
  };
  for (size_t i = 0; i < halves.small.size(); ++i) {
    place(halves.small[i], halves.lower_offset[i]);
  }
  for (size_t i = 0; i < halves.large.size(); ++i) place(halves.large[i], upper[i]);
  return solution;
}

}  // namespace spillway::packing
