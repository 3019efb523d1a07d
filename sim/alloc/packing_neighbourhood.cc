#include "sim/alloc/packing_neighbourhood.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "sim/alloc/packing_sweep.h"

namespace spillway::packing {
namespace {

constexpr int kSweeps = 30;       // to begin with
constexpr int kPatience = 8000;   // moves in a row that may bring nothing
constexpr double kHeat = 0.0014;  // how much worse every second move may be

}  // namespace

// The large blocks of a split, some of them placed below a height.
class NeighbourhoodSearch::Arena {
 public:
  Arena(const Part& part, int64_t height, std::mt19937& random, int64_t& steps)
      : part_(part),
        upper_(part.halves.upper),
        height_(height),
        random_(random),
        steps_(steps),
        offset_(upper_.count(), -1) {}

  // The best of some sweeps.
  void Begin() {
    std::vector<int64_t> best;
    double least = std::numeric_limits<double>::max();
    const Order all = AllBlocks(upper_);
    for (int i = 0; i < kSweeps; ++i) {
      Clear();
      const double missing = Sweep(all, DrawRule(part_.pivots, random_), least);
      if (missing >= least) continue;
      least = missing;
      best = offset_;
    }
    Resume(best);
  }

  // With these offsets, -1 for homeless. What sticks out is homeless, above or below.
  void Resume(const std::vector<int64_t>& offsets) {
    Clear();
    for (uint32_t block = 0; block < offsets.size(); ++block) {
      const int64_t offset = offsets[block];
      if (offset < part_.halves.floor[block] || offset + upper_.size[block] > height_) continue;
      Put(block, offset);
    }
    FindHomeless();
  }

  // REQUIRES: something is homeless.
  void Move() {
    const uint32_t block = homeless_[random_() % homeless_.size()];
    const Window window = DrawWindow(block);
    const double before = TakeOut(window);
    SweepRule rule = DrawRule(part_.pivots, random_);
    rule.pivot = DrawPivot(window);
    const double limit = before + kHeat * std::countr_zero(random_() | uint32_t{1} << 31);
    std::vector<uint32_t>& blocks = again_;
    blocks.clear();
    for (const Taken& taken : taken_) blocks.push_back(taken.block);
    // The one it is about may come first, and disturb the others.
    if (random_() % 5 == 0 && Place(block, rule, true)) std::erase(blocks, block);
    if (Sweep(blocks, rule, limit) <= limit) {
      FindHomeless();
      return;
    }
    for (const Taken& taken : taken_) {
      if (offset_[taken.block] >= 0) Lift(taken.block);
    }
    for (const Taken& taken : taken_) {
      if (taken.offset >= 0) Put(taken.block, taken.offset);
    }
  }

  bool complete() const { return homeless_.empty(); }
  double missing() const { return missing_; }
  // By block, -1 for homeless.
  const std::vector<int64_t>& offsets() const { return offset_; }

 private:
  struct Window {
    int64_t begin, end;     // of time
    int64_t bottom, top;    // of offsets
    int64_t longest;        // what lives longer stays
    uint32_t stays_one_in;  // of the others that many stay; all move if it is 0
  };
  struct Taken {
    uint32_t block;
    int64_t offset;
  };

  int64_t Life(uint32_t block) const { return upper_.end[block] - upper_.begin[block]; }
  int64_t Draw(int64_t count) {  // in [0, count)
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  Window DrawWindow(uint32_t block) {
    const int64_t around = int64_t{1} << Draw(6);
    int64_t begin = upper_.begin[block], end = upper_.end[block];
    if (Life(block) > 2 * around && random_() % 2 == 0) {  // a part of its life
      begin += Draw(Life(block));
      end = begin;
    }
    Window window{begin - around, end + around, 0, height_, std::numeric_limits<int64_t>::max(), 0};
    if (random_() % 16 != 0) {
      const int64_t band = upper_.size[block] * (1 + Draw(4)) + Draw(height_ / 10 + 1);
      window.bottom = Draw(std::max<int64_t>(1, height_ - band));
      window.top = window.bottom + band;
    }
    if (random_() % 2 == 0) window.longest = 4 * around + 2;
    if (random_() % 2 == 0) window.stays_one_in = 2 + random_() % 4;
    return window;
  }

  // Somewhere within, or at one of the ends.
  int64_t DrawPivot(const Window& window) {
    switch (random_() % 8) {
      case 0:
        return window.begin - 1;
      case 1:
        return window.end;
      default:
        return window.begin + Draw(window.end - window.begin);
    }
  }

  // Leaves what lay in the window, and what is homeless at its time, in `taken_`; returns what the
  // latter weighs.
  double TakeOut(const Window& window) {
    taken_.clear();
    double homeless = 0;
    for (const uint32_t block : homeless_) {
      if (upper_.begin[block] >= window.end || upper_.end[block] <= window.begin) continue;
      taken_.push_back({block, -1});
      homeless += part_.weight[block];
    }
    steps_ -= static_cast<int64_t>(placed_.size());
    std::erase_if(placed_, [&](const Placed& other) {
      if (other.begin >= window.end || other.end <= window.begin) return false;
      if (other.offset >= window.top || other.top <= window.bottom) return false;
      if (other.end - other.begin > window.longest) return false;
      if (window.stays_one_in > 0 && random_() % window.stays_one_in == 0) return false;
      taken_.push_back({other.block, other.offset});
      offset_[other.block] = -1;
      return true;
    });
    return homeless;
  }

  // Places what it can of the blocks, none of which has a place; returns the weight of the others,
  // or what is above `limit` when it gave up.
  double Sweep(const std::vector<uint32_t>& blocks, const SweepRule& rule, double limit) {
    const SweepOrder order = OrderOf(upper_, rule, blocks);
    double missing = 0;
    for (const auto* part : {&order.stack, &order.later, &order.earlier}) {
      for (const uint32_t block : *part) {
        if (Place(block, rule, part != &order.earlier)) continue;
        missing += part_.weight[block];
        if (missing > limit) return missing;
      }
    }
    return missing;
  }

  // False if there is no free place. `forward`: the block is placed in the order of time.
  bool Place(uint32_t block, const SweepRule& rule, bool forward) {
    const int64_t begin = upper_.begin[block], end = upper_.end[block];
    met_.clear();
    for (const Placed& other : placed_) {
      if (other.begin >= end || other.end <= begin) continue;
      met_.push_back(other);
      if (forward) continue;
      met_.back().begin = -other.end;
      met_.back().end = -other.begin;
    }
    steps_ -= static_cast<int64_t>(placed_.size() + met_.size() + 1);
    const int64_t offset = BestGap(met_, part_.halves.floor[block], height_, upper_.size[block],
                                   forward ? begin : -end, forward ? end : -begin, rule, random_);
    if (offset < 0) return false;
    Put(block, offset);
    return true;
  }

  void Put(uint32_t block, int64_t offset) {
    offset_[block] = offset;
    const Placed here{offset, offset + upper_.size[block], upper_.begin[block], upper_.end[block],
                      block};
    placed_.insert(
        std::upper_bound(placed_.begin(), placed_.end(), here,
                         [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
        here);
  }

  void Lift(uint32_t block) {
    auto at = std::lower_bound(placed_.begin(), placed_.end(), offset_[block],
                               [](const Placed& a, int64_t offset) { return a.offset < offset; });
    while (at->block != block) ++at;
    placed_.erase(at);
    offset_[block] = -1;
  }

  void Clear() {
    placed_.clear();
    offset_.assign(upper_.count(), -1);
  }

  void FindHomeless() {
    homeless_.clear();
    missing_ = 0;
    for (uint32_t block = 0; block < upper_.count(); ++block) {
      if (offset_[block] >= 0) continue;
      homeless_.push_back(block);
      missing_ += part_.weight[block];
    }
  }

  const Part& part_;
  const Problem& upper_;
  const int64_t height_;
  std::mt19937& random_;
  int64_t& steps_;
  std::vector<int64_t> offset_;  // by block, -1 without a place
  std::vector<Placed> placed_;   // by offset
  std::vector<uint32_t> homeless_;
  double missing_ = 0;  // what these weigh
  std::vector<Taken> taken_;
  std::vector<uint32_t> again_;
  std::vector<Placed> met_;
};

NeighbourhoodSearch::NeighbourhoodSearch(const Problem& problem, int64_t bound, int64_t& steps)
    : problem_(problem), random_(7) {
  for (const int64_t part : {2500, 1000, 5000}) {
    Halves halves = Split(problem, bound / part, std::numeric_limits<int64_t>::max(), steps);
    if (halves.large.empty()) continue;
    halves.upper = Compress(halves.upper);
    const Problem& upper = halves.upper;
    const int64_t upper_bound = BoundOf(upper);
    std::vector<double> weight;
    for (uint32_t i = 0; i < upper.count(); ++i) {
      weight.push_back(WeightOf(upper, i, static_cast<double>(upper_bound)));
    }
    std::vector<int64_t> pivots = FullMoments(upper, upper_bound);
    parts_.push_back({std::move(halves), std::move(weight), std::move(pivots)});
  }
}

Solution NeighbourhoodSearch::Run(const Solution& start, int64_t height, int64_t& steps) {
  std::vector<const Part*> parts;
  for (const Part& part : parts_) {
    if (Fits(part.halves, height)) parts.push_back(&part);
  }
  if (parts.empty()) return {};
  struct Nearest {
    double missing = std::numeric_limits<double>::max();
    std::vector<int64_t> offsets;
  };
  std::vector<Nearest> nearest(parts.size());  // by part
  for (size_t round = 0; steps > 0; ++round) {
    const size_t turn = round % parts.size(), cycle = round / parts.size();
    const Part& part = *parts[turn];
    Arena arena(part, height, random_, steps);
    if (cycle % 2 == 0) {
      arena.Begin();
    } else if (cycle == 1) {
      std::vector<int64_t> offsets;
      for (const uint32_t block : part.halves.large) offsets.push_back(start.offset[block]);
      arena.Resume(offsets);
    } else {
      arena.Resume(nearest[turn].offsets);
    }
    double least = arena.missing();
    for (int idle = 0; !arena.complete() && idle < kPatience && steps > 0; ++idle) {
      arena.Move();
      if (arena.missing() >= least) continue;
      least = arena.missing();
      idle = 0;
    }
    if (arena.complete()) return Join(problem_, part.halves, arena.offsets());
    if (arena.missing() < nearest[turn].missing) {
      nearest[turn] = {arena.missing(), arena.offsets()};
    }
  }
  return {};
}

}  // namespace spillway::packing
