#include "policies/plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace spillway {
namespace {

// The share by which the walk, at its begin, may step to a slower plan.
constexpr double kHeat = 0.002;
// Moves that the walk makes at once are less than this far apart in the list of moves.
constexpr size_t kNear = 16;
// A storage is decided on if its size is at least one part in this many of the largest's.
constexpr int64_t kSmallest = 256;
constexpr int kEvictSteps = 12;
constexpr int kOffloadSteps = 8;
constexpr size_t kClose = 16;  // points of the grid that are tried twice
// The shares of the memory, in percent, in which the best plans are tried again: blocks that begin
// elsewhere leave other holes, and may leave fewer.
constexpr std::array<int64_t, 5> kParts{99, 98, 97, 96, 95};
// Less memory is tried if at least this share of the memory is lost to holes.
constexpr double kHoles = 0.005;
constexpr size_t kLongestRebuild = 100;  // storages

// Returns the time to rebuild a storage when it is needed, if storages that `plan` evicts, and
// storages that have ended by then, are not there. Returns kForever if it cannot be rebuilt. Adds
// one in `relied_on`, if given, for each storage that the rebuild relies on.
Duration RebuildCost(const JointFacts& facts, TensorId storage, const JointPlan& plan,
                     std::vector<int64_t>* relied_on = nullptr) {
  const OpId at = facts.GapOf(storage)->needed;
  std::vector<TensorId> open{storage}, seen{storage};
  Duration cost;
  for (size_t i = 0; i < open.size(); ++i) {
    const auto writers = facts.liveness().Writers(open[i]);
    if (writers.empty() || open.size() > kLongestRebuild) return kForever;
    for (const OpId writer : writers) {
      if (writer >= at) break;
      if (!facts.trace().op(writer).recomputable) return kForever;
      cost += facts.TimeOf(writer);
      for (const TensorId input : facts.trace().op(writer).inputs) {
        const TensorId id = facts.liveness().Root(input);
        if (std::ranges::find(seen, id) != seen.end()) continue;
        seen.push_back(id);
        if (StaysOnDevice(facts.trace().tensor(id).kind)) continue;
        if (plan.storages[Index(id)].fate == Fate::kEvict || *facts.liveness().LastUse(id) < at) {
          open.push_back(id);
        } else if (relied_on != nullptr) {
          ++(*relied_on)[Index(id)];
        }
      }
    }
  }
  return cost;
}

// Returns the choices that can be rebuilt, the cheapest per byte first. The cost of each counts
// with all storages before it evicted. It includes the time by which rebuilding other storages
// from it becomes longer.
std::vector<TensorId> EvictionOrder(const JointFacts& facts, std::span<const TensorId> choices,
                                    JointPlan plan) {
  std::vector<int64_t> relied_on(facts.trace().tensors.size());
  using Entry = std::pair<double, TensorId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  const auto cost = [&](TensorId id) {
    const Duration time = RebuildCost(facts, id, plan);
    if (time == kForever) return std::numeric_limits<double>::infinity();
    return static_cast<double>(time.picoseconds()) * static_cast<double>(1 + relied_on[Index(id)]) /
           static_cast<double>(facts.Aligned(id).count());
  };
  for (const TensorId id : choices) open.emplace(cost(id), id);
  std::vector<TensorId> order;
  while (!open.empty()) {
    const TensorId id = open.top().second;
    open.pop();
    const double now = cost(id);
    if (now == std::numeric_limits<double>::infinity()) continue;
    if (!open.empty() && now > open.top().first) {
      open.emplace(now, id);
      continue;
    }
    RebuildCost(facts, id, plan, &relied_on);
    plan.storages[Index(id)].fate = Fate::kEvict;
    order.push_back(id);
  }
  return order;
}

// Appends the other points of the grid to its first, which keeps all storages.
void AddPoints(const Trials& trials, std::span<const TensorId> choices,
               std::vector<Scored>& points) {
  const JointFacts& facts = trials.facts();
  const Scored nothing = points.front();
  std::vector<TensorId> cheapest;
  if (trials.options().recompute) cheapest = EvictionOrder(facts, choices, nothing.plan);
  Bytes evictable;
  for (const TensorId id : cheapest) evictable += facts.Aligned(id);
  // The bytes that can be copied to the host during an iteration in unlimited memory.
  const Duration in_core = facts.StartOf(static_cast<OpId>(facts.trace().ops.size() - 1));
  const double gib_time =
      static_cast<double>(facts.cost().CopyTime(Direction::kToHost, Bytes::GiB(1)).picoseconds());
  const Bytes copyable(static_cast<int64_t>(static_cast<double>(in_core.picoseconds()) / gib_time *
                                            static_cast<double>(Bytes::GiB(1).count())));
  for (int evict = 0; evict <= kEvictSteps; ++evict) {
    JointPlan evicting = nothing.plan;
    Bytes evicted;
    for (const TensorId id : cheapest) {
      if (evicted * kEvictSteps >= evictable * evict) break;
      evicting.storages[Index(id)].fate = Fate::kEvict;
      evicted += facts.Aligned(id);
    }
    for (int offload = 0; offload <= kOffloadSteps; ++offload) {
      JointPlan plan = evicting;
      Bytes offloaded;
      for (const TensorId id : choices) {
        if (offloaded * 2 * kOffloadSteps >= copyable * offload) break;
        if (plan.storages[Index(id)].fate != Fate::kKeep) continue;
        plan.storages[Index(id)].fate = Fate::kOffload;
        offloaded += facts.Aligned(id);
      }
      for (const bool again : {false, true}) {
        for (const TensorId id : cheapest) {
          StoragePlan& storage = plan.storages[Index(id)];
          storage.again = again && storage.fate == Fate::kEvict;
        }
        if (points.back().plan == plan) continue;
        points.push_back({plan, kForever, nothing.profile});
        AdjustProfile(facts, nothing.plan, points.back());
      }
      if (!trials.options().offload) break;
    }
  }
}

// Scores the points of a grid. A point that cannot be among the `kClose` fastest is not run.
void ScorePoints(Trials& trials, std::span<Scored> points) {
  std::vector<Duration> fastest(kClose, kForever);  // the least times so far
  for (size_t i = 0; i < points.size(); i += kBatch) {
    const std::span<Scored> batch = points.subspan(i, std::min(kBatch, points.size() - i));
    trials.Score(batch, fastest.back());
    for (const Scored& point : batch) {
      fastest.insert(std::ranges::upper_bound(fastest, point.time), point.time);
    }
    fastest.resize(kClose);
  }
}

// Tries the plans again by their own profiles, with and without `apart`, and sorts all by time. A
// plan that is good by its own profile can be bad by another one, so plans derived from it keep
// that profile. REQUIRES: the plans are sorted by time.
void TryByOwnProfiles(Trials& trials, std::vector<Scored>& plans) {
  const size_t given = plans.size();
  for (size_t i = 0; i < given && plans[i].time != kForever; ++i) {
    for (const bool apart : {false, true}) {
      plans.push_back(plans[i]);
      plans.back().plan.apart = apart;
      plans.back().by_own = true;
      plans.back().profile = plans[i].own;
    }
  }
  trials.Score(std::span(plans).subspan(given));
  std::ranges::stable_sort(plans, {}, &Scored::time);
}

// Tries plans, which are sorted by time, in less memory, with at most a few of the trials.
std::vector<Scored> InLessMemory(Trials& trials, std::span<const Scored> plans) {
  const auto few = static_cast<size_t>(std::max<int64_t>(0, trials.left() / 100));
  std::vector<Scored> less;
  for (size_t i = 0; i < std::min(few, plans.size()) && plans[i].time != kForever; ++i) {
    for (const int64_t percent : kParts) {
      less.push_back(plans[i]);
      Bytes& memory = less.back().plan.memory;
      memory = RoundDown(Bytes(memory.count() / 100 * percent), trials.facts().alignment());
    }
  }
  trials.Score(less);
  return less;
}

// Returns the best point of the grid, and also the best one in less memory if that is faster. The
// points are `keep`, a plan that keeps all storages, with other fates for some of the `choices`,
// which are offloaded in the order given. Returns an empty vector if none fits, and `keep` alone if
// it takes no longer than `in_core`.
std::vector<Scored> TryGrid(Trials& trials, std::span<const TensorId> choices,
                            const JointPlan& keep, Duration in_core) {
  std::vector<Scored> points{{keep, kForever, ProfileInCore(trials.facts())}};
  trials.Score(points);
  if (points[0].time <= in_core) return points;
  AddPoints(trials, choices, points);
  ScorePoints(trials, points);
  std::ranges::stable_sort(points, {}, &Scored::time);
  if (points.size() > kClose) points.erase(points.begin() + kClose, points.end());
  const size_t close = points.size();
  TryByOwnProfiles(trials, points);
  if (points[0].time == kForever) return {};
  if (points[0].fragmentation < kHoles) return {points[0]};
  const std::vector<Scored> less = InLessMemory(trials, std::span(points).first(close));
  const auto fastest = std::ranges::min_element(less, {}, &Scored::time);
  if (fastest == less.end() || fastest->time >= points[0].time) return {points[0]};
  return {points[0], *fastest};
}

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
    if (options_.recompute && facts_.RebuildTime(storages.front())) {
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
  Bytes largest_;                  // of the storages that may move
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

}  // namespace spillway
