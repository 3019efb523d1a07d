#include "sim/alloc/packing_insertion.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace spillway::packing {
namespace {

constexpr int64_t kHeaviest = 1 << 24;
constexpr int kMovesToSettle = 100;   // for one block of a sweep
constexpr int kMovesAtTheEnd = 3000;  // for all that was left out
constexpr size_t kBest = 6;           // attempts whose rules are varied
constexpr double kHopeless = 1.3;     // times what the best attempt left out
constexpr double kPromising = 1.1;
constexpr uint32_t kInTurn = 60;  // attempts before the better split gets more of them
// A move sorts what its block meets, once or twice: that much more than a comparison.
constexpr int64_t kComparisons = 8;

}  // namespace

// One attempt: the large blocks of a split, some of them placed below a height.
class InsertionSearch::Arena {
 public:
  Arena(const Part& part, const SweepRule& rule, int64_t height, int64_t& steps)
      : part_(part),
        upper_(part.halves.upper),
        rule_(rule),
        height_(height),
        steps_(steps),
        offset_(upper_.count(), -1),
        weight_(part.first_weight),
        random_(rule.seed) {}

  // False when it gave up: what was left out weighs `hopeless` or more, or no steps are left.
  bool Sweep(double hopeless) {
    const SweepOrder order = OrderOf(upper_, rule_, AllBlocks(upper_));
    int64_t floor = 0;
    for (const uint32_t block : order.stack) {
      const int64_t offset = std::max(floor, part_.halves.floor[block]);
      if (offset + upper_.size[block] <= height_) {
        offset_[block] = offset;
        floor = offset + upper_.size[block];
      } else {
        Insert(block);
      }
    }
    for (const auto* blocks : {&order.later, &order.earlier}) {
      forward_ = blocks == &order.later;
      for (const uint32_t block : *blocks) {
        if (missing_ >= hopeless || steps_ <= 0) return false;
        Insert(block);
      }
    }
    complete_ = left_out_.empty();
    return true;
  }

  // REQUIRES: `Sweep` returned true. All that was left out looks for a place.
  void Finish() {
    for (const uint32_t block : left_out_) homeless_.push(block);
    double missing = missing_;
    complete_ = Settle(kMovesAtTheEnd, &missing);
    missing_ = complete_ ? 0 : missing;
  }

  bool complete() const { return complete_; }
  double missing() const { return missing_; }
  // By block. REQUIRES: complete().
  const std::vector<int64_t>& offsets() const { return offset_; }

 private:
  struct Smaller {
    const Problem& problem;
    bool operator()(uint32_t a, uint32_t b) const {
      if (problem.size[a] != problem.size[b]) return problem.size[a] < problem.size[b];
      const int64_t life_a = problem.end[a] - problem.begin[a];
      const int64_t life_b = problem.end[b] - problem.begin[b];
      return life_a != life_b ? life_a < life_b : a > b;
    }
  };

  // The lifetime in the direction of the sweep.
  int64_t Begin(uint32_t block) const {
    return forward_ ? upper_.begin[block] : -upper_.end[block];
  }
  int64_t End(uint32_t block) const { return forward_ ? upper_.end[block] : -upper_.begin[block]; }

  void Insert(uint32_t block) {
    const Choice choice = Choose(block);
    if (choice.weight == 0) {
      offset_[block] = choice.offset;
      return;
    }
    const std::vector<int64_t> before = offset_;
    homeless_.push(block);
    if (Settle(kMovesToSettle, nullptr)) return;
    offset_ = before;
    left_out_.push_back(block);
    missing_ += part_.missing[block];
  }

  // Places what is homeless, the largest first; what that throws out is homeless in its turn. True
  // when all have a place. `least`: what is homeless weighs so much, and the least that it came to.
  bool Settle(int moves, double* least) {
    double missing = least != nullptr ? *least : 0;
    for (; moves > 0 && steps_ > 0 && !homeless_.empty(); --moves) {
      const uint32_t block = homeless_.top();
      homeless_.pop();
      missing -= part_.missing[block];
      const Choice choice = Choose(block);
      const int64_t top = choice.offset + upper_.size[block];
      if (choice.weight > 0) {
        weight_[block] += std::max<int64_t>(1, part_.first_weight[block] / 10);
        for (const Placed& other : placed_) {
          if (other.offset >= top || choice.offset >= other.top) continue;
          offset_[other.block] = -1;
          homeless_.push(other.block);
          missing += part_.missing[other.block];
        }
      }
      offset_[block] = choice.offset;
      if (least != nullptr) *least = std::min(*least, missing);
    }
    const bool settled = homeless_.empty();
    while (!homeless_.empty()) homeless_.pop();
    return settled;
  }

  // The free place whose neighbours suit best, else one of those where the least is in the way.
  // Leaves in `placed_` what the block meets.
  Choice Choose(uint32_t block) {
    const int64_t size = upper_.size[block], lowest = part_.halves.floor[block];
    placed_.clear();
    for (const uint32_t other : part_.met[block]) {
      const int64_t offset = offset_[other];
      if (offset < 0) continue;
      placed_.push_back({offset, offset + upper_.size[other], Begin(other), End(other), other});
    }
    steps_ -= kComparisons * static_cast<int64_t>(part_.met[block].size() + 1);
    std::sort(placed_.begin(), placed_.end(),
              [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    const int64_t free =
        BestGap(placed_, lowest, height_, size, Begin(block), End(block), rule_, random_);
    return free >= 0 ? Choice{free, 0} : LeastInTheWay(lowest, height_ - size, size);
  }

  Choice LeastInTheWay(int64_t lowest, int64_t highest, int64_t size) {
    met_.clear();
    passed_.clear();
    for (const Placed& other : placed_) {
      met_.push_back({other.offset - size, weight_[other.block]});
      passed_.push_back({other.top, weight_[other.block]});
    }
    std::sort(passed_.begin(), passed_.end(), [](const Weighted& a, const Weighted& b) {
      return a.at != b.at ? a.at < b.at : a.weight < b.weight;
    });
    return packing::LeastInTheWay(met_, passed_, lowest, highest, random_);
  }

  const Part& part_;
  const Problem& upper_;
  const SweepRule rule_;
  const int64_t height_;
  int64_t& steps_;
  std::vector<int64_t> offset_;  // by block, -1 without a place
  std::vector<int64_t> weight_;  // by block
  std::mt19937 random_;
  bool forward_ = true;  // in time
  std::priority_queue<uint32_t, std::vector<uint32_t>, Smaller> homeless_{Smaller{upper_}};
  std::vector<uint32_t> left_out_;
  double missing_ = 0;  // the weight of that
  bool complete_ = false;
  std::vector<Placed> placed_;  // by offset
  std::vector<Weighted> met_, passed_;
};

InsertionSearch::InsertionSearch(const Problem& problem, int64_t bound, int64_t& steps)
    : problem_(problem), random_(7) {
  const int64_t forever = std::numeric_limits<int64_t>::max();
  for (const int64_t part : {1000, 2500, 5000}) {
    Add(Split(problem, bound / part, forever, steps));
  }
}

void InsertionSearch::Add(Halves halves) {
  if (halves.large.empty()) return;
  Part& part = parts_.emplace_back();
  part.halves = std::move(halves);
  Problem& upper = part.halves.upper;
  upper = Compress(upper);
  const int64_t bound = BoundOf(upper);
  part.pivots = FullMoments(upper, bound);
  part.met.resize(upper.count());
  const auto life = [&](uint32_t i) { return static_cast<double>(upper.end[i] - upper.begin[i]); };
  const auto area = [&](uint32_t i) { return static_cast<double>(upper.size[i]) * life(i); };
  double largest = 1;
  for (uint32_t i = 0; i < upper.count(); ++i) {
    largest = std::max(largest, area(i));
    for (uint32_t j = 0; j < upper.count(); ++j) {
      if (i != j && upper.Meet(i, j)) part.met[i].push_back(j);
    }
  }
  for (uint32_t i = 0; i < upper.count(); ++i) {
    part.first_weight.push_back(static_cast<int64_t>(kHeaviest * (area(i) / largest)) + 10);
    part.missing.push_back(WeightOf(upper, i, static_cast<double>(bound)));
  }
}

// Two of three times that of one of the best attempts, with one thing changed.
SweepRule InsertionSearch::Next(const Part& part) {
  const SweepRule drawn = DrawRule(part.pivots, random_);
  if (part.best.size() < kBest || random_() % 3 == 0) return drawn;
  SweepRule rule = part.best[random_() % part.best.size()].rule;
  rule.seed = drawn.seed;
  switch (random_() % 8) {
    case 0:
      rule.pivot = drawn.pivot;
      break;
    case 1:
      rule.stack = drawn.stack;
      break;
    case 2:
      rule.by_life = drawn.by_life;
      break;
    case 3:
      rule.gap = drawn.gap;
      break;
    case 4:
      rule.farthest = drawn.farthest;
      break;
    case 5:
      rule.origin = drawn.origin;
      break;
    case 6:
      rule.noise = drawn.noise;
      break;
    default: {  // a moment nearby
      const auto& pivots = part.pivots;
      const auto at = std::lower_bound(pivots.begin(), pivots.end(), rule.pivot) - pivots.begin();
      const auto last = static_cast<int64_t>(pivots.size()) - 1;
      const int64_t moved = at + static_cast<int64_t>(random_() % 7) - 3;
      rule.pivot = pivots[static_cast<size_t>(std::clamp<int64_t>(moved, 0, last))];
    }
  }
  return rule;
}

Solution InsertionSearch::Run(int64_t height, int64_t& steps) {
  std::vector<Part*> parts;
  for (Part& part : parts_) {
    part.best.clear();
    if (Fits(part.halves, height)) parts.push_back(&part);
  }
  if (parts.empty()) return {};
  const auto least = [](const Part& part) {
    return part.best.empty() ? std::numeric_limits<double>::max() : part.best.front().missing;
  };
  for (uint32_t round = 0; steps > 0; ++round) {
    Part* part = parts[round % parts.size()];
    if (round >= kInTurn && random_() % 2 == 0) {
      part = *std::min_element(parts.begin(), parts.end(),
                               [&](const Part* a, const Part* b) { return least(*a) < least(*b); });
    }
    const SweepRule rule = Next(*part);
    steps -= static_cast<int64_t>(problem_.count());
    Arena arena(*part, rule, height, steps);
    const bool ended = arena.Sweep(least(*part) * kHopeless);
    if (ended && !arena.complete() && arena.missing() <= least(*part) * kPromising) arena.Finish();
    if (arena.complete()) return Join(problem_, part->halves, arena.offsets());
    const Attempt attempt{rule, arena.missing()};
    part->best.insert(
        std::upper_bound(part->best.begin(), part->best.end(), attempt,
                         [](const Attempt& a, const Attempt& b) { return a.missing < b.missing; }),
        attempt);
    if (part->best.size() > kBest) part->best.pop_back();
  }
  return {};
}

}  // namespace spillway::packing
