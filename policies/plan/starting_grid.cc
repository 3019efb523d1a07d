#include "policies/plan/starting_grid.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace spillway::policies {
namespace {

constexpr int kEvictSteps = 12;
constexpr int kOffloadSteps = 8;
constexpr size_t kClose = 16;  // points of the grid that are tried twice
// The shares of the memory, in percent, in which the best plans are tried again: blocks that begin
// elsewhere leave other holes, and may leave fewer.
constexpr std::array<int64_t, 5> kParts{99, 98, 97, 96, 95};
// Less memory is tried if at least this share of the memory is lost to holes.
constexpr double kHoles = 0.005;
constexpr size_t kLongestRecomputation = 100;  // storages

// Returns the time to recompute a storage when it is needed, if storages that `plan` evicts, and
// storages that have ended by then, are not there. Returns kForever if it cannot be recomputed.
// Adds one in `relied_on`, if given, for each storage that the recomputation relies on.
Duration RecomputeCost(const JointFacts& facts, TensorId storage, const JointPlan& plan,
                       std::vector<int64_t>* relied_on = nullptr) {
  const OpId at = facts.GapOf(storage)->needed;
  std::vector<TensorId> open{storage}, seen{storage};
  Duration cost;
  for (size_t i = 0; i < open.size(); ++i) {
    const auto writers = facts.liveness().Writers(open[i]);
    if (writers.empty() || open.size() > kLongestRecomputation) return kForever;
    for (const OpId writer : writers) {
      if (writer >= at) break;
      if (!facts.trace().op(writer).recomputable) return kForever;
      cost += facts.AgainTimeOf(writer);
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

// Returns the choices that can be recomputed, the cheapest per byte first. The cost of each counts
// with all storages before it evicted. It includes the time by which recomputing other storages
// from it becomes longer.
std::vector<TensorId> EvictionOrder(const JointFacts& facts, std::span<const TensorId> choices,
                                    JointPlan plan) {
  std::vector<int64_t> relied_on(facts.trace().tensors.size());
  using Entry = std::pair<double, TensorId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  const auto cost = [&](TensorId id) {
    const Duration time = RecomputeCost(facts, id, plan);
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
    RecomputeCost(facts, id, plan, &relied_on);
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

}  // namespace

std::vector<Scored> TryGrid(Trials& trials, std::span<const TensorId> choices,
                            const JointPlan& keep, Duration in_core) {
  std::vector<Scored> points{{keep, kForever, ProfileInCore(trials.facts(), keep)}};
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

}  // namespace spillway::policies
