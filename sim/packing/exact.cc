#include "sim/packing/exact.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <utility>

namespace spillway::sim::packing {
namespace {

constexpr int64_t kAttempt = 200'000;           // least number of steps
constexpr int kPatience = 200;                  // repairs in a row without an improvement
constexpr int64_t kNoFloor = int64_t{1} << 60;  // floor of a section whose blocks are all placed

class ExactSearch {
 public:
  // Looks for packings no higher than `ceiling`. REQUIRES: `problem` is compressed.
  ExactSearch(const Problem& problem, int64_t ceiling, const ExactParams& params, int64_t& steps)
      : problem_(problem), ceiling_(ceiling), params_(params), steps_(steps) {
    const auto sections =
        static_cast<size_t>(*std::max_element(problem.end.begin(), problem.end.end()));
    floor_.assign(sections, 0);
    left_.assign(sections, 0);
    placed_.assign(problem.count(), true);
    offset_.assign(problem.count(), 0);
    for (uint32_t block = 0; block < problem.count(); ++block) Return(block);
  }

  Solution Run() {
    const auto size = static_cast<int64_t>(problem_.count() + floor_.size());
    const int64_t attempt = std::max(kAttempt, 2 * static_cast<int64_t>(problem_.count()) * size);
    std::vector<Place> kept;  // the blocks with which the next attempt begins
    int64_t least = 0;        // the area that `kept` leaves unplaced
    int idle = 0;             // repairs since the last improvement
    for (int64_t tries = 0, beginnings = 0; steps_ > 0; ++tries) {
      Sort(tries);
      const bool anew = kept.empty();
      int64_t limit = attempt;
      if (anew) {
        ++beginnings;
        limit = tries == 0 ? std::max(attempt, steps_ / 64) : attempt * (beginnings & -beginnings);
        least = std::numeric_limits<int64_t>::max();
        idle = 0;
      } else {
        PutBack(kept);
      }
      stop_ = std::max<int64_t>(0, steps_ - limit);
      stopped_ = false;
      least_todo_ = std::numeric_limits<int64_t>::max();
      if (Descend()) return Found();
      Undo({});
      if (!stopped_ && anew) break;  // there is no packing
      if (!params_.repair) continue;
      idle = least_todo_ < least ? 0 : idle + 1;
      if (least_todo_ <= least) {
        least = least_todo_;
        kept = furthest_;
      }
      if (idle > kPatience) kept.clear();
    }
    return {};
  }

 private:
  struct Place {
    uint32_t block;
    int64_t offset;
  };
  // Sections [begin, end) with one floor, between higher sections.
  struct Valley {
    size_t begin = 0, end = 0;
    int64_t floor = 0;
    int64_t wall = 0;  // the lower of the two higher sections
  };
  struct Corner {
    Valley valley;
    size_t section = 0;
    std::vector<uint32_t> blocks;  // blocks that may lie in the corner
    int64_t loss = 0;   // least loss if no block lies there; 0 if the section cannot lose it
    size_t ways = 0;    // number of ways to continue; 0 if there is no corner
    int64_t spare = 0;  // the height that the section can lose
  };
  enum class Outcome : uint8_t { kSame, kRaised, kContradiction };
  struct Change {
    size_t section;
    int64_t floor;
  };
  struct Mark {
    size_t changes = 0, stack = 0;
  };

  size_t BeginOf(uint32_t block) const { return static_cast<size_t>(problem_.begin[block]); }
  size_t EndOf(uint32_t block) const { return static_cast<size_t>(problem_.end[block]); }
  int64_t AreaOf(uint32_t block) const {
    return problem_.size[block] * (problem_.end[block] - problem_.begin[block]);
  }
  int64_t FloorOf(size_t section) const { return left_[section] == 0 ? kNoFloor : floor_[section]; }

  // Sets the order in which blocks are tried: the largest first by one of several measures. After
  // the first attempt, the measures are distorted at random.
  void Sort(int64_t tries) {
    steps_ -= static_cast<int64_t>(16 * problem_.count());  // approximately
    std::vector<double> key;
    for (uint32_t block = 0; block < problem_.count(); ++block) {
      const auto life = static_cast<double>(problem_.end[block] - problem_.begin[block]);
      const auto size = static_cast<double>(problem_.size[block]);
      const std::array<double, 4> measures{life * size, life, size, life * life * size};
      const double factor = tries == 0 ? 1 : static_cast<double>(1 << random_() % 7);
      key.push_back(measures[static_cast<size_t>(tries % 4)] * factor);
    }
    const Order order = OrderBy(problem_, [&](uint32_t block) { return key[block]; });
    beginning_.assign(floor_.size(), {});
    ending_.assign(floor_.size() + 1, {});
    for (const uint32_t block : order) {
      beginning_[BeginOf(block)].push_back(block);
      ending_[EndOf(block)].push_back(block);
    }
  }

  // Places the blocks of the best attempt again, except in a hole that is open above. The hole
  // starts at a random height in the section of the last contradiction.
  void PutBack(const std::vector<Place>& kept) {
    int64_t top = 0;
    const auto meets = [&](const Place& one) {
      return BeginOf(one.block) <= contradiction_ && contradiction_ < EndOf(one.block);
    };
    for (const Place& one : kept) {
      if (meets(one)) top = std::max(top, one.offset);
    }
    const auto bottom = static_cast<int64_t>(random_() % static_cast<uint64_t>(top + 1));
    std::vector<bool> open(floor_.size(), false);
    for (const Place& one : kept) {
      const auto first = open.begin() + problem_.begin[one.block];
      const auto last = open.begin() + problem_.end[one.block];
      if ((meets(one) && one.offset >= bottom) || std::find(first, last, true) != last) {
        std::fill(first, last, true);
      } else {
        Put(one.block, one.offset);
      }
    }
  }

  // Places all remaining blocks and returns true, or places no block and returns false. If it
  // returns false, there is no packing unless the attempt was stopped.
  bool Descend() {
    if (todo_ < least_todo_) {
      least_todo_ = todo_;
      furthest_.clear();
      for (const uint32_t block : stack_) furthest_.push_back({block, offset_[block]});
    }
    if (todo_ == 0) return true;
    const Mark before = Here();
    while (true) {
      if (steps_ <= stop_) stopped_ = true;
      Corner corner;
      if (stopped_ || !Conclude(corner)) break;
      const Mark mark = Here();
      for (const uint32_t block : corner.blocks) {
        Put(block, corner.valley.floor);
        if (Descend()) return true;
        Undo(mark);
      }
      if (corner.loss == 0) break;
      // The loss may be small and occur many times in one valley, so it is handled by a loop and
      // not by recursion.
      Set(corner.section, corner.valley.floor + corner.loss);
    }
    Undo(before);
    return false;
  }

  // Raises valleys in which no block fits and chooses the corner. Returns false if there is a
  // contradiction.
  bool Conclude(Corner& corner) {
    const size_t last = floor_.size();
    for (bool changed = true; changed;) {
      changed = false;
      corner.ways = 0;
      steps_ -= static_cast<int64_t>(last);
      for (size_t begin = 0, end; begin < last; begin = end) {
        const int64_t floor = FloorOf(begin);
        for (end = begin + 1; end < last && FloorOf(end) == floor; ++end) continue;
        if (floor == kNoFloor) continue;
        const int64_t wall = std::min(begin == 0 ? kNoFloor : FloorOf(begin - 1),
                                      end == last ? kNoFloor : FloorOf(end));
        for (size_t s = begin; s < end; ++s) {
          if (!CanLie(s, floor)) return Contradict(s);
        }
        if (wall < floor) continue;
        const Outcome outcome = Look({begin, end, floor, wall}, corner);
        if (outcome == Outcome::kContradiction)
          return Contradict(begin + random_() % (end - begin));
        if (outcome == Outcome::kRaised) changed = true;
      }
    }
    return true;
  }

  bool Contradict(size_t section) {
    contradiction_ = section;
    return false;
  }

  Outcome Look(const Valley& valley, Corner& corner) {
    const auto [begin, end, floor, wall] = valley;
    // If no block lies at the floor of a section, its lowest block rests on the wall or at the top
    // of another section's block.
    int64_t loss = wall - floor;
    bool fits = false;
    for (size_t s = begin; s < end; ++s) {
      steps_ -= static_cast<int64_t>(beginning_[s].size());
      for (const uint32_t block : beginning_[s]) {
        if (!Fits(block, end)) continue;
        fits = true;
        loss = std::min(loss, problem_.size[block]);
      }
    }
    if (!fits) {
      if (wall == kNoFloor) return Outcome::kContradiction;
      for (size_t s = begin; s < end; ++s) Set(s, wall);
      return Outcome::kRaised;
    }
    for (const bool right : {false, true}) {
      if (right && !params_.right) break;
      blocks_.clear();
      const size_t section = right ? end - 1 : begin;
      for (const uint32_t block : right ? ending_[end] : beginning_[begin]) {
        if (BeginOf(block) >= begin && Fits(block, end)) blocks_.push_back(block);
      }
      const bool loses = CanLie(section, floor + loss);
      if (blocks_.empty() && !loses) return Outcome::kContradiction;
      const Corner other{valley,
                         section,
                         {},
                         loses ? loss : 0,
                         blocks_.size() + (loses ? 1 : 0),
                         ceiling_ - floor - left_[section]};
      if (corner.ways > 0 && !Precedes(other, corner)) continue;
      corner = other;
      std::swap(corner.blocks, blocks_);
      if (!params_.even) continue;
      std::stable_partition(corner.blocks.begin(), corner.blocks.end(), [&](uint32_t block) {
        return valley.floor + problem_.size[block] == valley.wall ||
               (BeginOf(block) == valley.begin && EndOf(block) == valley.end);
      });
    }
    return Outcome::kSame;
  }

  // The corner with little to lose and few fitting blocks comes first, because a mistake shows soon
  // there.
  bool Precedes(const Corner& a, const Corner& b) const {
    if (!params_.fewest) return a.valley.floor < b.valley.floor;
    if (a.ways == 1 || b.ways == 1) return a.ways < b.ways;
    const auto key = [](const Corner& corner) {
      return std::pair(corner.spare * static_cast<int64_t>(corner.ways), corner.ways);
    };
    return key(a) < key(b);
  }

  bool CanLie(size_t section, int64_t floor) const { return floor + left_[section] <= ceiling_; }

  // Returns true if the block can be placed in the valley. REQUIRES: the block begins in the
  // valley, which ends at `end`.
  bool Fits(uint32_t block, size_t end) const { return !placed_[block] && EndOf(block) <= end; }

  void Set(size_t section, int64_t floor) {
    changes_.push_back({section, floor_[section]});
    floor_[section] = floor;
  }

  void Put(uint32_t block, int64_t offset) {
    stack_.push_back(block);
    placed_[block] = true;
    offset_[block] = offset;
    todo_ -= AreaOf(block);
    for (size_t s = BeginOf(block); s < EndOf(block); ++s) {
      Set(s, offset + problem_.size[block]);
      left_[s] -= problem_.size[block];
    }
  }
  void Return(uint32_t block) {
    placed_[block] = false;
    todo_ += AreaOf(block);
    for (size_t s = BeginOf(block); s < EndOf(block); ++s) {
      left_[s] += problem_.size[block];
    }
  }

  Mark Here() const { return {changes_.size(), stack_.size()}; }
  void Undo(const Mark& mark) {
    for (; stack_.size() > mark.stack; stack_.pop_back()) Return(stack_.back());
    for (; changes_.size() > mark.changes; changes_.pop_back()) {
      floor_[changes_.back().section] = changes_.back().floor;
    }
  }

  Solution Found() const {
    Solution solution{offset_, 0};
    for (size_t i = 0; i < offset_.size(); ++i) {
      solution.height = std::max(solution.height, offset_[i] + problem_.size[i]);
    }
    return solution;
  }

  const Problem& problem_;
  const int64_t ceiling_;
  const ExactParams params_;
  int64_t& steps_;
  int64_t stop_ = 0;  // an attempt stops when `steps_` has fallen to this
  bool stopped_ = false;
  std::mt19937 random_{11};
  std::vector<std::vector<uint32_t>> beginning_, ending_;  // by section, in trial order
  // By section:
  std::vector<int64_t> floor_;  // unplaced blocks lie above
  std::vector<int64_t> left_;   // sum of the unplaced blocks
  // By block:
  std::vector<uint8_t> placed_;
  std::vector<int64_t> offset_;
  // The changes made, so that they can be undone:
  std::vector<uint32_t> stack_;
  std::vector<Change> changes_;
  int64_t todo_ = 0;  // area of the unplaced blocks
  int64_t least_todo_ = 0;
  size_t contradiction_ = 0;      // section of the last contradiction
  std::vector<Place> furthest_;   // the blocks placed when `todo_` was least
  std::vector<uint32_t> blocks_;  // the blocks of one corner
};

}  // namespace

Solution SearchExactly(const Problem& problem, int64_t height, int64_t& steps,
                       const ExactParams& params) {
  if (problem.count() == 0 || steps <= 0) return {};
  const Problem compressed = Compress(problem);
  return ExactSearch(compressed, height - 1, params, steps).Run();
}

}  // namespace spillway::sim::packing
