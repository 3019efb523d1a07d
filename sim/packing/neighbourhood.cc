#include "sim/packing/neighbourhood.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/packing/time_sweep.h"

namespace spillway::sim::packing {
namespace {

constexpr int64_t kLarge = 2500;         // a block is large from this fraction of the bound on
constexpr size_t kRaces = 16;            // most races at a time
constexpr int64_t kSteps = 100'000'000;  // least number of steps for each of several races
constexpr size_t kRunners = 8;           // in a race
constexpr int kSweeps = 30;              // at the beginning
constexpr int kMoves = 500;              // moves of a runner until the first comparison
constexpr int kPatience = 8000;          // moves of the last runner without an improvement

}  // namespace

// The large blocks, some placed below a height.
class NeighbourhoodSearch::Arena {
 public:
  Arena(const NeighbourhoodSearch& search, int64_t height, std::mt19937& random, int64_t& steps)
      : search_(search),
        reduced_(search.reduced_),
        height_(height),
        random_(random),
        steps_(steps),
        offset_(reduced_.count(), -1) {}

  // Begins with the best of several sweeps.
  void Begin() {
    std::vector<int64_t> best;
    double least = std::numeric_limits<double>::max();
    const Order all = AllBlocks(reduced_);
    for (int i = 0; i < kSweeps && (i == 0 || steps_ > 0); ++i) {
      Clear();
      const double missing = Sweep(all, DrawRule(search_.pivots_, random_), least);
      if (missing >= least) continue;
      least = missing;
      best = offset_;
    }
    Resume(best);
  }

  // Continues with these offsets; -1 means homeless.
  void Resume(const std::vector<int64_t>& offsets) {
    Clear();
    for (uint32_t block = 0; block < offsets.size(); ++block) {
      if (offsets[block] < 0) continue;
      offset_[block] = offsets[block];
      placed_.push_back(At(block, offsets[block]));
    }
    std::stable_sort(placed_.begin(), placed_.end(), LiesLower);
    FindHomeless();
  }

  // Takes blocks out and places them again. REQUIRES: there is a homeless block.
  void Move() {
    const uint32_t block = homeless_[random_() % homeless_.size()];
    const Window window = DrawWindow(block);
    const double limit = TakeOut(window);
    SweepRule rule = DrawRule(search_.pivots_, random_);
    rule.pivot = DrawPivot(window);
    again_.clear();
    for (const Taken& taken : taken_) again_.push_back(taken.block);
    if (Sweep(again_, rule, limit) > limit) {
      for (const Taken& taken : taken_) offset_[taken.block] = taken.offset;
      return;
    }
    std::erase_if(placed_,
                  [&](const Placed& other) { return offset_[other.block] != other.offset; });
    for (const Taken& taken : taken_) {
      const int64_t offset = offset_[taken.block];
      if (offset >= 0 && offset != taken.offset) Put(placed_, taken.block, offset);
    }
    FindHomeless();
  }

  bool complete() const { return homeless_.empty(); }
  double missing() const { return missing_; }
  // by block; -1 means homeless
  const std::vector<int64_t>& offsets() const { return offset_; }

 private:
  struct Window {
    int64_t begin, end;   // an interval of time
    int64_t bottom, top;  // an interval of offsets
  };
  struct Taken {
    uint32_t block;
    int64_t offset;
  };

  int64_t Draw(int64_t count) {  // in [0, count)
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  // Draws a window around the block's lifetime. Leaves the blocks that are placed at that time in
  // `met_`.
  Window DrawWindow(uint32_t block) {
    const int64_t around = int64_t{1} << Draw(6);
    int64_t begin = reduced_.begin[block], end = reduced_.end[block];
    if (end - begin > 2 * around && random_() % 2 == 0) {  // a part of its life
      begin += Draw(end - begin);
      end = begin;
    }
    Window window{begin - around, end + around, 0, height_};
    Meet(placed_, window.begin, window.end);
    if (random_() % 16 != 0) {
      const int64_t band = reduced_.size[block] * (1 + Draw(4)) + Draw(height_ / 10 + 1);
      window.bottom = Draw(std::max<int64_t>(1, height_ - band));
      window.top = window.bottom + band;
    }
    return window;
  }

  // Leaves the placed blocks that live in [begin, end) in `met_`. Most blocks do not, and it is
  // hard to predict which do, so the loop has no branch.
  void Meet(const std::vector<Placed>& placed, int64_t begin, int64_t end) {
    met_.resize(placed.size());
    size_t count = 0;
    for (const Placed& other : placed) {
      met_[count] = &other;
      count += static_cast<size_t>(other.begin < end) & static_cast<size_t>(other.end > begin);
    }
    met_.resize(count);
    steps_ -= static_cast<int64_t>(placed.size());
  }

  // Draws a moment in the window or just outside one of its ends.
  int64_t DrawPivot(const Window& window) {
    const int64_t where = Draw(8);
    return where == 0   ? window.begin - 1
           : where == 1 ? window.end
                        : window.begin + Draw(window.end - window.begin);
  }

  // Takes out the blocks in the window, and the homeless blocks of its time, and leaves them in
  // `taken_`. Leaves the other placed blocks that are live at the same time in `local_`. Returns
  // the weight of the homeless blocks taken. REQUIRES: `met_` is as `DrawWindow` left it.
  double TakeOut(const Window& window) {
    taken_.clear();
    double homeless = 0;
    int64_t begin = window.begin, end = window.end;  // the times of all blocks taken
    const auto take = [&](uint32_t block) {
      taken_.push_back({block, offset_[block]});
      offset_[block] = -1;
      begin = std::min(begin, reduced_.begin[block]);
      end = std::max(end, reduced_.end[block]);
    };
    for (const uint32_t block : homeless_) {
      if (reduced_.begin[block] >= window.end || reduced_.end[block] <= window.begin) continue;
      take(block);
      homeless += search_.weight_[block];
    }
    for (const Placed* other : met_) {
      if (other->offset >= window.top || other->top <= window.bottom) continue;
      take(other->block);
    }
    Meet(placed_, begin, end);
    local_.clear();
    for (const Placed* other : met_) {
      if (offset_[other->block] >= 0) local_.push_back(*other);
    }
    return homeless;
  }

  // Places as many of the blocks into `local_` as it can. Returns the weight of the blocks without
  // a place; gives up once the weight exceeds `limit`.
  double Sweep(const Order& blocks, const SweepRule& rule, double limit) {
    const SweepOrder order = OrderOf(reduced_, rule, blocks);
    // If no other block is placed, the two directions do not meet. Blocks that the sweep has passed
    // can then be removed, because no later block meets them.
    const bool alone = placed_.empty();
    double missing = 0;
    const auto place = [&](const Order& some, bool forward) {
      for (size_t i = 0; i < some.size() && missing <= limit; ++i) {
        const int64_t begin = reduced_.begin[some[i]], end = reduced_.end[some[i]];
        if (alone) {
          std::erase_if(local_, [&](const Placed& other) {
            return forward ? other.end <= begin : other.begin >= end;
          });
        }
        if (!Place(some[i], rule, forward)) missing += search_.weight_[some[i]];
      }
    };
    place(order.stack, true);
    if (alone) stack_ = local_;
    place(order.later, true);
    if (alone) local_ = stack_;
    place(order.earlier, false);
    return missing;
  }

  // Places a block in `local_`; returns false if there is no free place. `forward` means that
  // blocks are placed in the order of time.
  bool Place(uint32_t block, const SweepRule& rule, bool forward) {
    Meet(local_, reduced_.begin[block], reduced_.end[block]);
    const Block wanted{reduced_.begin[block], reduced_.end[block], reduced_.size[block]};
    const int64_t offset = BestGap(met_, height_, wanted, forward, rule, random_);
    if (offset < 0) return false;
    offset_[block] = offset;
    Put(local_, block, offset);
    return true;
  }

  static bool LiesLower(const Placed& a, const Placed& b) { return a.offset < b.offset; }

  Placed At(uint32_t block, int64_t offset) const {
    return {offset, offset + reduced_.size[block], reduced_.begin[block], reduced_.end[block],
            block};
  }

  void Put(std::vector<Placed>& among, uint32_t block, int64_t offset) const {
    const Placed here = At(block, offset);
    among.insert(std::upper_bound(among.begin(), among.end(), here, LiesLower), here);
  }

  void Clear() {
    placed_.clear();
    local_.clear();
    offset_.assign(reduced_.count(), -1);
  }

  void FindHomeless() {
    homeless_.clear();
    missing_ = 0;
    for (uint32_t block = 0; block < reduced_.count(); ++block) {
      if (offset_[block] >= 0) continue;
      homeless_.push_back(block);
      missing_ += search_.weight_[block];
    }
  }

  const NeighbourhoodSearch& search_;
  const Problem& reduced_;
  const int64_t height_;
  std::mt19937& random_;
  int64_t& steps_;
  std::vector<int64_t> offset_;  // by block; -1 means homeless
  std::vector<Placed> placed_;   // by offset
  std::vector<Placed> local_;    // placed near the window or by the current move; by offset
  std::vector<Placed> stack_;    // the blocks live at the pivot, when no other block was placed
  std::vector<uint32_t> homeless_;
  double missing_ = 0;  // weight of the homeless blocks
  std::vector<const Placed*> met_;
  std::vector<Taken> taken_;
  std::vector<uint32_t> again_;
};

// Runs races until one leads to a packing below a height.
class NeighbourhoodSearch::Races {
 public:
  Races(const NeighbourhoodSearch& search, int64_t height, uint32_t seed, int64_t& steps)
      : steps_(steps), random_(seed), arena_(search, height, random_, steps) {}

  // Returns the offsets of the large blocks; empty if the steps run out or `stop()` returns true.
  template <typename Stop>
  std::vector<int64_t> Run(const Stop& stop) {
    while (steps_ > 0 && !stop()) {
      if (Race(stop)) return arena_.offsets();
    }
    return {};
  }

 private:
  struct Runner {
    double missing;
    std::vector<int64_t> offsets;
  };

  // Returns true if a runner has a place for every block; its offsets are then in the arena.
  template <typename Stop>
  bool Race(const Stop& stop) {
    std::vector<Runner> runners;
    while (runners.size() < kRunners && steps_ > 0 && !stop()) {
      arena_.Begin();
      if (arena_.complete()) return true;
      runners.push_back({arena_.missing(), arena_.offsets()});
    }
    // The better half gets twice the moves, again and again. The last runner continues until it
    // makes no more progress.
    for (int moves = kMoves; !runners.empty(); moves *= 2) {
      const bool last = runners.size() == 1;
      for (Runner& runner : runners) {
        arena_.Resume(runner.offsets);
        double least = arena_.missing();
        int idle = 0;  // moves since the last improvement
        for (int i = 0; last ? idle < kPatience : i < moves; ++i, ++idle) {
          if (steps_ <= 0 || stop()) return false;
          arena_.Move();
          if (arena_.complete()) return true;
          if (arena_.missing() >= least) continue;
          least = arena_.missing();
          idle = 0;
        }
        runner = {arena_.missing(), arena_.offsets()};
      }
      std::stable_sort(runners.begin(), runners.end(),
                       [](const Runner& a, const Runner& b) { return a.missing < b.missing; });
      runners.resize(runners.size() / 2);
    }
    return false;
  }

  int64_t& steps_;
  std::mt19937 random_;
  Arena arena_;
};

NeighbourhoodSearch::NeighbourhoodSearch(const Problem& problem, int64_t bound)
    : problem_(problem), random_(7) {
  for (const uint32_t block : OrderBy(problem, [&](uint32_t i) { return problem.size[i]; })) {
    if (problem.size[block] < bound / kLarge) break;
    large_.push_back(block);
  }
  if (large_.size() < problem.count()) sliver_ = bound / kLarge / 2;
  reduced_ = Compress(Restrict(problem, large_));
  const std::vector<int64_t> loads = LoadsOf(reduced_);
  const int64_t most = std::ranges::max(loads);
  for (size_t moment = 0; moment + 1 < loads.size(); ++moment) {
    if (loads[moment] >= most - most / 20) pivots_.push_back(static_cast<int64_t>(moment));
  }
  for (size_t i = 0; i < reduced_.count(); ++i) {
    weight_.push_back(static_cast<double>(reduced_.size[i]) / static_cast<double>(most) *
                      std::sqrt(static_cast<double>(reduced_.end[i] - reduced_.begin[i])));
  }
}

Solution NeighbourhoodSearch::Run(int64_t height, int64_t& steps) {
  if (steps <= 0 || large_.empty()) return {};
  struct Outcome {
    std::vector<int64_t> offsets;
    int64_t steps;  // steps left
  };
  const size_t count = std::clamp<size_t>(static_cast<size_t>(steps / kSteps), 1, kRaces);
  const int64_t share = steps / static_cast<int64_t>(count) + 1;
  std::vector<Outcome> outcomes(count, {{}, share});
  const uint32_t seed = static_cast<uint32_t>(random_());
  // The first race in their order that succeeds counts, whichever ends first. So races begin in
  // that order, and later races are stopped when an earlier one has succeeded.
  std::atomic<size_t> next = 0, first = count;
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(size_t{0}, count, [&](size_t) {
      const size_t i = next++;
      Outcome& outcome = outcomes[i];
      Races races(*this, height - sliver_, seed + static_cast<uint32_t>(i), outcome.steps);
      outcome.offsets = races.Run([&] { return first < i; });
      if (outcome.offsets.empty()) return;
      for (size_t before = first; i < before && !first.compare_exchange_weak(before, i);) continue;
    });
  });
  const size_t last = std::min<size_t>(first, count - 1);
  for (size_t i = 0; i <= last; ++i) steps -= share - outcomes[i].steps;
  if (first == count) return {};
  std::vector<int64_t> fixed(problem_.count(), -1);
  for (size_t i = 0; i < large_.size(); ++i) fixed[large_[i]] = outcomes[first].offsets[i];
  return Place(problem_, OrderBy(problem_, [&](uint32_t i) { return problem_.size[i]; }),
               Gap::kTightest, steps, fixed);
}

}  // namespace spillway::sim::packing
