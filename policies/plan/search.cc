#include "policies/plan/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "policies/plan/starting_grid.h"

namespace spillway::policies {
namespace {

// The share by which the walk, at its begin, may step to a slower plan.
constexpr double kHeat = 0.002;
// Moves that the walk makes at once are less than this far apart in the list of moves.
constexpr size_t kNear = 16;
// A storage is decided on if its size is at least one part in this many of the largest's.
constexpr int64_t kSmallest = 256;

class Search {
 public:
  explicit Search(Trials& trials)
      : trials_(trials),
        facts_(trials.facts()),
        options_(trials.options()),
        best_{JointPlan(facts_.trace())} {
    for (const TensorId id : facts_.movable()) largest_ = std::max(largest_, facts_.Aligned(id));
    std::ranges::copy_if(facts_.movable(), std::back_inserter(choices_),
                         [this](TensorId id) { return IsChoice(id); });
    AddMoves();
  }

  std::optional<JointPlan> Run(Bytes memory, Duration in_core) {
    // Both values of `drops` are tried if enough trials are left.
    std::vector<Scored> beginnings;
    for (const bool drops : {true, false}) {
      const bool few = trials_.left() * 4 < options_.trials * 3;
      if ((drops && !options_.recompute) || (few && !beginnings.empty())) continue;
      JointPlan keep(facts_.trace());
      for (const TensorId id : options_.outside) keep.storages[Index(id)].fate = Fate::kOutside;
      keep.drops = drops;
      keep.memory = memory;
      std::vector<Scored> best = TryGrid(trials_, choices_, keep, in_core);
      // If layers repeat, the search does not begin twice with what is the same without `drops`.
      if (facts_.copies().layers_repeat) {
        std::erase_if(best, [&](const Scored& one) { return FindWithDrops(beginnings, one.plan); });
      }
      std::ranges::move(best, std::back_inserter(beginnings));
      Take(beginnings);
      if (best_.time <= in_core || Enough()) return best_.plan;
    }
    trials_.Forget();
    if (best_.time == kForever) return std::nullopt;
    if (moves_.empty()) return best_.plan;
    const int64_t part = trials_.left() / static_cast<int64_t>(beginnings.size() + 2);
    for (auto beginning = beginnings.rbegin(); beginning != beginnings.rend(); ++beginning) {
      std::swap(best_, *beginning);
      Sweep(part);
      if (Enough()) return best_.plan;
    }
    Take(beginnings);
    // If layers repeat, the sweeps have tried the changes of the most copies by now.
    Sweep(part, facts_.copies().layers_repeat ? static_cast<size_t>(part) : 0);
    Walk();
    return best_.plan;
  }

 private:
  // Returns true if no further trials are worth their time.
  bool Enough() const { return best_.time <= options_.enough; }

  bool IsChoice(TensorId movable) const { return facts_.Aligned(movable) * kSmallest >= largest_; }

  bool Take(std::span<Scored> plans) {
    const auto fastest = std::ranges::min_element(plans, {}, &Scored::time);
    if (fastest == plans.end() || fastest->time >= best_.time) return false;
    best_ = *fastest;
    return true;
  }

  // Cuts each group into `parts` parts. Returns the first part of each group, then the second of
  // each, and so on, without parts that are empty or that fewer parts have given alone.
  template <typename Id>
  static std::vector<std::span<const Id>> Cut(const std::vector<std::vector<Id>>& groups,
                                              size_t parts) {
    std::vector<std::span<const Id>> cut;
    for (size_t part = 0; part < parts; ++part) {
      for (const std::vector<Id>& group : groups) {
        const auto at = [&](size_t i, size_t of) { return group.size() * i / of; };
        const size_t from = at(part, parts), to = at(part + 1, parts);
        const bool known = parts > 1 && at(part / 2 + 1, parts / 2) - at(part / 2, parts / 2) == 1;
        if (from < to && !known) cut.push_back(std::span(group).subspan(from, to - from));
      }
    }
    return cut;
  }

  // Adds the changes of one decision on all of these storages, which are copies.
  void AddMoves(std::span<const TensorId> storages) {
    std::vector<StoragePlan> others{{Fate::kKeep, OpId{}, false}};
    if (options_.offload) others.push_back({Fate::kOffload, OpId{}, false});
    if (options_.recompute && facts_.RecomputeTime(storages.front())) {
      others.push_back({Fate::kEvict, OpId{}, false});
      others.push_back({Fate::kEvict, OpId{}, true});
    }
    for (const StoragePlan& other : others) {
      moves_.push_back([storages, other](JointPlan& plan) {
        for (const TensorId id : storages) {
          StoragePlan& storage = plan.storages[Index(id)];
          storage = {other.fate, storage.prefetch, other.again};
        }
      });
    }
  }

  // Adds the changes of the kernels of all of these ops, which are copies.
  void AddMoves(std::span<const OpId> ops) {
    // This also fills the chooser's cache, which several threads will read.
    std::vector<KernelPlan> ways =
        options_.chooser.Ways(facts_.cost(), facts_.trace().op(ops.front()));
    if (!options_.kernels || ways.size() < 2) return;
    ways.insert(ways.begin(), KernelPlan());
    for (const KernelPlan& way : ways) {
      moves_.push_back([ops, way](JointPlan& plan) {
        for (const OpId op : ops) plan.kernels[Index(op)] = way;
      });
    }
  }

  // Adds all changes of a single decision, on all copies of a storage or an op first, then on
  // each half of them, each quarter, and so on.
  void AddMoves() {
    if (!choices_.empty()) moves_.push_back([](JointPlan& plan) { plan.apart = !plan.apart; });
    const Copies& copies = facts_.copies();
    for (size_t parts = 1;; parts *= 2) {
      const auto storages = Cut(copies.storages, parts);
      const auto ops = Cut(copies.ops, parts);
      if (storages.empty() && ops.empty()) return;
      for (const auto& part : storages) {
        if (IsChoice(part.front())) AddMoves(part);
      }
      for (const auto& part : ops) AddMoves(part);
    }
  }

  // Returns `from` after some moves, to be scored, or nullopt if they change nothing.
  std::optional<Scored> After(const Scored& from, std::span<const size_t> moves) const {
    Scored next = from;
    for (const size_t move : moves) moves_[move](next.plan);
    if (next.plan == from.plan) return std::nullopt;
    AdjustProfile(facts_, from.plan, next);
    return next;
  }

  // Tries every move from the `next` on, and then every move while a move helped, for at most
  // `trials` trials.
  void Sweep(int64_t trials, size_t next = 0) {
    const int64_t rest = trials_.left() - trials;
    bool improved = false;
    while (trials_.left() > rest && !Enough()) {
      if (next >= moves_.size() && !std::exchange(improved, false)) return;
      if (next >= moves_.size()) next = 0;
      std::vector<Scored> batch;
      for (; next < moves_.size() && batch.size() < kBatch; ++next) {
        if (auto after = After(best_, {&next, 1})) batch.push_back(*std::move(after));
      }
      trials_.Score(batch, best_.time);
      improved |= Take(batch);
    }
  }

  // Walks from the best plan to neighbours, which may be slower by a share that falls to 0.
  void Walk() {
    Scored at = best_;
    const int64_t all = std::max<int64_t>(trials_.left(), 1);
    std::mt19937_64 random(options_.seed);
    while (trials_.left() > 0 && !Enough()) {
      std::vector<Scored> batch;
      for (int tries = 0; batch.size() < kBatch && tries < 100; ++tries) {
        // The moves are of storages, or of kernels, that are near each other.
        std::vector<size_t> moves(1 + random() % 3);
        const size_t near = random() % moves_.size();
        for (size_t& move : moves) move = std::min(near + random() % kNear, moves_.size() - 1);
        if (auto next = After(at, moves)) batch.push_back(*std::move(next));
      }
      if (batch.empty()) return;
      const double heat = kHeat * static_cast<double>(trials_.left() - trials_.Of(batch.size())) /
                          static_cast<double>(all);
      const auto allowed = Duration::Picoseconds(
          std::llround(static_cast<double>(at.time.picoseconds()) * (1 + heat)));
      trials_.Score(batch, std::max(best_.time, allowed));
      Take(batch);
      const auto fastest = std::ranges::min_element(batch, {}, &Scored::time);
      if (fastest->time < allowed) at = *fastest;
    }
  }

  Trials& trials_;
  const JointFacts& facts_;
  const SearchOptions& options_;
  Bytes largest_;                  // the size of the largest storage that may move
  std::vector<TensorId> choices_;  // the storages to decide on, in the order of `Gap::written`
  std::vector<std::function<void(JointPlan&)>> moves_;
  Scored best_;
};

}  // namespace

std::optional<JointPlan> SearchPlan(std::shared_ptr<const JointFacts> facts, const TrialRun& trial,
                                    Bytes memory, Duration in_core, const SearchOptions& options) {
  Trials trials(std::move(facts), trial, options);
  return Search(trials).Run(memory, in_core);
}

}  // namespace spillway::policies
