#include "sim/packing/exact.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "traces/base/units.h"

namespace spillway::packing {
namespace {

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

}  // namespace

Solution SearchExactly(const Problem& problem, int64_t height, int64_t& steps) {
  return ExactSearch(problem, height, steps).Run();
}

}  // namespace spillway::packing
