#include "sim/alloc/packing_ejection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <utility>

namespace spillway::packing {
namespace {

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

  // The lowest free place, else one of those where the least is in the way.
  Choice Choose(uint32_t block) {
    const int64_t size = problem_.size[block], lowest = floor_[block], highest = height_ - size;
    met_.clear();
    passed_.clear();
    for (const Edge& edge : bottoms_) {
      if (Meets(edge, block)) met_.push_back({edge.at - size, weight_[edge.block]});
    }
    for (const Edge& edge : tops_) {
      if (Meets(edge, block)) passed_.push_back({edge.at, weight_[edge.block]});
    }
    return LeastInTheWay(met_, passed_, lowest, highest, random_);
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

}  // namespace

Ejection::Ejection(const Problem& problem, int64_t bound, int64_t& steps) : problem_(problem) {
  const int64_t first = *std::min_element(problem.begin.begin(), problem.begin.end());
  const int64_t last = *std::max_element(problem.end.begin(), problem.end.end());
  for (const int64_t life : {last - first + 1, (last - first + 1) / 2}) {
    for (const int64_t part : {1, 2, 0}) {
      splits_.push_back(Split(problem, bound * part / 1000, life, steps));
    }
  }
}

Solution Ejection::Run(int64_t height, int64_t& steps) {
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
    if (found) return Join(problem_, halves, ejector.offsets());
  }
  return {};
}

}  // namespace spillway::packing
