#include "tests/testing/tight.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

namespace spillway::testing {
namespace {

struct Rectangle {
  int64_t begin, end, bottom, top;  // half-open, in time and in memory
};

class Cutter {
 public:
  Cutter(int blocks, int overlap, int64_t end, uint32_t seed)
      : blocks_(blocks), overlap_(overlap), end_(end), random_(seed) {}

  // Cuts rectangles in two, or in five around a middle one if `pinwheels`. A cut in two divides
  // memory or time at random, weighted so that the mean overlap approaches `overlap_`.
  std::vector<Rectangle> Dissect(bool pinwheels) {
    std::vector<Rectangle> all{{0, end_, 0, kTightHeight}};
    int64_t life = end_;  // the sum of all lifetimes
    while (Count(all) < blocks_) {
      size_t i = Below(all.size());
      const size_t other = Below(all.size());
      if (Area(all[other]) > Area(all[i])) i = other;
      const Rectangle r = all[i];
      const int64_t width = r.end - r.begin, height = r.top - r.bottom;
      if (pinwheels && width > 2 && height > 2 && Below(3) == 0) {
        const int64_t left = Between(r.begin, r.end - 1), right = Between(left, r.end);
        const int64_t low = Between(r.bottom, r.top - 1), high = Between(low, r.top);
        all[i] = {left, right, low, high};
        const auto around = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
          all.push_back({r.begin, b, r.bottom, c});
          all.push_back({b, r.end, r.bottom, d});
          all.push_back({a, r.end, d, r.top});
          all.push_back({r.begin, a, c, r.top});
        };
        around(left, right, low, high);
        life += 2 * (right - left) + width;
        continue;
      }
      // A cut through memory adds to the sum of lifetimes. Its chance is the missing lifetime,
      // divided by the mean lifetime times the number of cuts left.
      const int64_t missing = (overlap_ * end_ - life) * Count(all);
      if (static_cast<int64_t>(Below(1000)) * life * (blocks_ - Count(all)) < missing * 1000) {
        if (height < 2) continue;
        all[i].top = Between(r.bottom, r.top);
        all.push_back({r.begin, r.end, all[i].top, r.top});
        life += width;
      } else {
        if (width < 2) continue;
        all[i].end = Between(r.begin, r.end);
        all.push_back({all[i].end, r.end, r.bottom, r.top});
      }
    }
    return all;
  }

  // Stacks bricks. Now and then some neighbours end together and other bricks take their memory.
  std::vector<Rectangle> LayBricks() {
    std::vector<Rectangle> done, live;  // `live` is sorted by offset
    const auto lay = [&](size_t at, int64_t now, int64_t bottom, int64_t top, size_t count) {
      std::vector<int64_t> cuts{bottom, top};
      for (size_t i = 1; i < count && top - bottom > 1; ++i) cuts.push_back(Between(bottom, top));
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      for (size_t i = 1; i < cuts.size(); ++i) {
        live.insert(At(live, at++), {now, end_, cuts[i - 1], cuts[i]});
      }
    };
    lay(0, 0, 0, kTightHeight, static_cast<size_t>(overlap_));
    const int changes = std::max(1, (blocks_ - overlap_) / 2);
    for (int i = 1; i <= changes; ++i) {
      const int64_t now = i * end_ / (changes + 1);
      const size_t first = Below(live.size());
      const size_t last = std::min(live.size(), first + 1 + Below(3));
      const int64_t bottom = live[first].bottom, top = live[last - 1].top;
      for (size_t k = first; k < last; ++k) {
        live[k].end = now;
        done.push_back(live[k]);
      }
      live.erase(At(live, first), At(live, last));
      lay(first, now, bottom, top, Count(live) < overlap_ ? 2 + Below(3) : 1);
    }
    done.insert(done.end(), live.begin(), live.end());
    return done;
  }

  size_t Below(size_t count) { return random_() % count; }

 private:
  static int Count(const std::vector<Rectangle>& all) { return static_cast<int>(all.size()); }
  static double Area(const Rectangle& r) {
    return static_cast<double>(r.end - r.begin) * static_cast<double>(r.top - r.bottom);
  }
  static std::vector<Rectangle>::iterator At(std::vector<Rectangle>& all, size_t i) {
    return all.begin() + static_cast<std::ptrdiff_t>(i);
  }
  int64_t Between(int64_t low, int64_t high) {  // exclusive of both bounds
    return low + 1 + static_cast<int64_t>(Below(static_cast<size_t>(high - low - 1)));
  }

  const int blocks_, overlap_;
  const int64_t end_;
  std::mt19937 random_;
};

}  // namespace

packing::Problem Tight(Cut cut, int blocks, int overlap, uint32_t seed) {
  const int64_t end = cut == Cut::kCoarse ? blocks / 2 : 16 * blocks;
  Cutter cutter(blocks, overlap, end, seed);
  std::vector<Rectangle> all = cut == Cut::kBrick || cut == Cut::kHoles
                                   ? cutter.LayBricks()
                                   : cutter.Dissect(cut == Cut::kPinwheel);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[cutter.Below(i)]);
  packing::Problem problem;
  for (const Rectangle& r : all) {
    const bool stays = r.begin <= end / 2 && end / 2 < r.end;
    if (cut == Cut::kHoles && !stays && cutter.Below(10) == 0) continue;
    problem.begin.push_back(r.begin);
    problem.end.push_back(r.end);
    problem.size.push_back(r.top - r.bottom);
  }
  return problem;
}

}  // namespace spillway::testing
