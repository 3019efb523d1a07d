#include "policies/plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <random>
#include <ranges>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/plan/in_parallel.h"
#include "policies/plan/plan_executor.h"

namespace spillway {
namespace {

// The number of plans that are tried at the same time. It is not the number of cores, because the
// result must not depend on that.
constexpr size_t kBatch = 4;
// A prefetch is planned to start this long before it has to.
constexpr Duration kSlack = Duration::Milliseconds(2);
// One part in this many of the memory is left to holes between blocks when prefetches are planned.
constexpr int64_t kMargin = 100;
// The share by which the walk, at its begin, may step to a slower plan.
constexpr double kHeat = 0.002;
// Moves that the walk makes at once are less than this far apart in the list of moves.
constexpr size_t kNear = 16;
constexpr int kEvictSteps = 12;
constexpr size_t kClose = 16;  // points of the grid that are tried twice
// The shares of the memory, in percent, in which the best plans are tried again: blocks that begin
// elsewhere leave other holes, and may leave fewer.
constexpr std::array<int64_t, 5> kParts{99, 98, 97, 96, 95};
// Less memory is tried if at least this share of the memory is lost to holes.
constexpr double kHoles = 0.005;
constexpr int kOffloadSteps = 8;
constexpr Duration kNever = Duration::Max();
constexpr size_t kLongestRebuild = 100;  // storages
// A storage is decided on if its size is at least one part in this many of the largest's.
constexpr int64_t kSmallest = 256;

// By op: the most bytes that are needed on the device while the op is prepared and issued. Storages
// that could be released for it do not count.
using Profile = std::vector<Bytes>;

struct Scored {
  JointPlan plan;
  Duration time = kNever;  // kNever if it does not fit
  Profile profile = {};    // by which it, and the plans derived from it, are scheduled
  Profile own = {};        // the profile of its trial
  bool by_own = false;     // after the trial, `own` replaces `profile`
  bool dropped = true;     // false: its trial is the same without `JointPlan::drops`
  double fragmentation = 0;
};

class Search {
 public:
  Search(std::shared_ptr<const JointFacts> facts, const TrialRun& trial, Bytes memory,
         Duration in_core, const SearchOptions& options)
      : facts_(std::move(facts)),
        trial_(trial),
        memory_(memory),
        in_core_(in_core),
        options_(options),
        best_{JointPlan(facts_->trace())} {}

  std::optional<JointPlan> Run() {
    FindChoices();
    moves_ = Moves();
    // Both values of `drops` are tried if enough trials are left.
    std::vector<Scored> beginnings;
    for (const bool drops : {true, false}) {
      const bool few = left_ * 4 < options_.trials * 3;
      if ((drops && !options_.recompute) || (few && !beginnings.empty())) continue;
      std::vector<Scored> found = Grid(drops);
      // If layers repeat, the search does not begin twice with what is the same without `drops`.
      if (facts_->copies().layers_repeat) {
        std::erase_if(found,
                      [&](const Scored& one) { return FindWithDrops(beginnings, one.plan); });
      }
      std::ranges::move(found, std::back_inserter(beginnings));
      Take(beginnings);
      if (best_.time <= in_core_ || Enough()) return best_.plan;
    }
    tried_.reset();
    if (best_.time == kNever) return std::nullopt;
    if (moves_.empty()) return best_.plan;
    const int64_t part = left_ / static_cast<int64_t>(beginnings.size() + 2);
    for (auto beginning = beginnings.rbegin(); beginning != beginnings.rend(); ++beginning) {
      std::swap(best_, *beginning);
      Sweep(part);
      if (Enough()) return best_.plan;
    }
    Take(beginnings);
    // If layers repeat, the sweeps have tried the changes of the most copies by now.
    Sweep(part, facts_->copies().layers_repeat ? static_cast<size_t>(part) : 0);
    Walk();
    return best_.plan;
  }

 private:
  using Move = std::function<void(JointPlan&)>;

  const Trace& trace() const { return facts_->trace(); }
  Bytes Aligned(TensorId id) const { return RoundUp(trace().tensor(id).size, facts_->alignment()); }

  // Returns true if no further trials are worth their time.
  bool Enough() const { return best_.time <= options_.enough; }

  bool IsChoice(TensorId movable) const { return Aligned(movable) * kSmallest >= largest_; }

  void FindChoices() {
    for (const TensorId id : facts_->movable()) largest_ = std::max(largest_, Aligned(id));
    std::ranges::copy_if(facts_->movable(), std::back_inserter(choices_),
                         [this](TensorId id) { return IsChoice(id); });
    for (size_t i = 0; i < trace().ops.size(); ++i) {
      least_times_.push_back(LeastTimeOf(static_cast<OpId>(i)));
    }
    left_ = options_.trials;
  }

  // Returns the profile of a run that keeps everything and runs the fastest kernels.
  Profile KeepAll() const {
    Profile profile(trace().ops.size() + 1);
    for (size_t i = 0; i < trace().tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const Liveness& liveness = facts_->liveness();
      if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
      const TensorKind kind = trace().tensor(id).kind;
      const bool stays = StaysOnDevice(kind);
      const size_t from = stays || kind == TensorKind::kInput ? 0 : Index(*liveness.FirstUse(id));
      const size_t to = stays ? trace().ops.size() : Index(*liveness.LastUse(id)) + 1;
      profile[from] += Aligned(id);
      profile[to] -= Aligned(id);
    }
    for (size_t i = 1; i < profile.size(); ++i) profile[i] += profile[i - 1];
    profile.pop_back();
    for (size_t i = 0; i < profile.size(); ++i) {
      Bytes workspace;
      const Op& op = trace().ops[i];
      for (size_t slot = 0; slot < op.slots.size(); ++slot) {
        workspace = std::max(workspace, facts_->cost().Kernels(op, slot, op.batch)[0].workspace);
      }
      profile[i] += workspace;
    }
    return profile;
  }

  // Changes the profile of plan `from` into the profile with the fates of plan `to`.
  void Adjust(Profile& profile, const JointPlan& from, const JointPlan& to) const {
    Profile changes(profile.size() + 1);
    for (const TensorId id : choices_) {
      const bool kept = from.storages[Index(id)].fate == Fate::kKeep;
      const bool keeps = to.storages[Index(id)].fate == Fate::kKeep;
      if (kept == keeps) continue;
      const Gap& gap = *facts_->GapOf(id);
      const Bytes change = kept ? Bytes(0) - Aligned(id) : Aligned(id);
      changes[Index(gap.left) + 1] += change;
      changes[std::max(Index(gap.left) + 1, Index(gap.needed))] -= change;
    }
    Bytes change;
    for (size_t op = 0; op < profile.size(); ++op) {
      change += changes[op];
      profile[op] += change;
    }
  }

  // Makes each prefetch start as early as the profile allows, in the order in which the storages
  // are needed.
  void Schedule(JointPlan& plan, Profile profile) const {
    const std::vector<OpId> needs = NeedsOf(*facts_, plan);
    std::vector<TensorId> queue;
    for (const TensorId id : choices_) {
      if (plan.storages[Index(id)].fate == Fate::kOffload) queue.push_back(id);
    }
    std::ranges::stable_sort(queue, {}, [&](TensorId id) { return needs[Index(id)]; });
    // The latest time at which each copy has to start so that no copy is late.
    std::vector<Duration> latest(queue.size());
    Duration next = Duration::Max();
    for (size_t i = queue.size(); i-- > 0;) {
      const TensorId id = queue[i];
      next = std::min(next, facts_->StartOf(needs[Index(id)])) -
             facts_->cost().CopyTime(Direction::kToDevice, trace().tensor(id).size);
      latest[i] = next - kSlack;
    }
    const Bytes room = plan.memory - Bytes(plan.memory.count() / kMargin);
    for (size_t i = 0; i < queue.size(); ++i) {
      const TensorId id = queue[i];
      size_t op = Index(needs[Index(id)]);
      size_t earliest = Index(facts_->GapOf(id)->left) + 1;
      const auto ops = std::views::iota(earliest, std::max(earliest, op));
      const auto in_time = std::ranges::partition_point(ops, [&](size_t before) {
        return facts_->StartOf(static_cast<OpId>(before)) < latest[i];
      });
      earliest += static_cast<size_t>(in_time - ops.begin());
      while (op > earliest && profile[op - 1] + Aligned(id) <= room) {
        profile[--op] += Aligned(id);
      }
      plan.storages[Index(id)].prefetch = static_cast<OpId>(op);
    }
  }

  // Returns the profile of a trial, from its placements.
  Profile ProfileOf(const JointPlan& plan, const Report& report) const {
    Profile profile(trace().ops.size());
    const std::vector<OpId> needs = NeedsOf(*facts_, plan);
    Bytes needed;
    std::vector<bool> held(trace().tensors.size());
    OpId op{};
    // An offloaded storage that is still there between its last use and its next could be released.
    std::vector<std::vector<TensorId>> leave(trace().ops.size()), wanted(trace().ops.size());
    std::vector<bool> idle(trace().tensors.size());
    for (const TensorId id : choices_) {
      if (plan.storages[Index(id)].fate != Fate::kOffload) continue;
      leave[Index(facts_->GapOf(id)->left)].push_back(id);
      wanted[Index(needs[Index(id)])].push_back(id);
    }
    const auto begin_op = [&](OpId next) {
      while (op < next) {
        for (const TensorId id : leave[Index(op)]) {
          idle[Index(id)] = true;
          if (held[Index(id)]) needed -= Aligned(id);
        }
        op = static_cast<OpId>(Index(op) + 1);
        for (const TensorId id : wanted[Index(op)]) {
          idle[Index(id)] = false;
          if (held[Index(id)]) needed += Aligned(id);
        }
        profile[Index(op)] = needed;
      }
    };
    for (const Placement& placement : report.placements) {
      if (!placement.on_device() || placement.kind > PlacementKind::kFree) continue;
      begin_op(placement.op);
      const bool taken = placement.kind == PlacementKind::kAllocate;
      if (placement.tensor != kNoTensor) {
        held[Index(placement.tensor)] = taken;
        if (idle[Index(placement.tensor)]) continue;
      }
      needed += taken ? placement.block.size : Bytes(0) - placement.block.size;
      profile[Index(op)] = std::max(profile[Index(op)], needed);
    }
    begin_op(static_cast<OpId>(trace().ops.size() - 1));
    return profile;
  }

  // Returns the time of the op with its fastest kernels, on micro-batches if these are allowed.
  Duration LeastTimeOf(OpId op) const {
    if (!options_.chooser.batches()) return facts_->TimeOf(op);
    const Op& of = trace().op(op);
    const std::vector<KernelPlan> ways = options_.chooser.Ways(facts_->cost(), of);
    return ways.empty() ? facts_->TimeOf(op) : TimeOf(of, ways.back());
  }

  // Returns the least time of these kernels, whatever runs before the op.
  Duration TimeOf(const Op& op, const KernelPlan& kernels) const {
    Duration time;
    for (size_t i = 0; i < kernels.size(); ++i) {
      const KernelRun& run = kernels[i];
      const Kernel& kernel = facts_->cost().Kernels(op, run.slot, run.batch)[run.kernel];
      const bool may_be_warm = i == 0 || kernels[i - 1].slot == run.slot;
      time += kernel.time - (may_be_warm ? kernel.in_sequence : Duration());
    }
    return time;
  }

  // Returns the time of the plan's kernels if each evicted storage is rebuilt once, and everything
  // that this reads is there.
  Duration LeastTimeOf(const JointPlan& plan) const {
    std::vector<int> runs(trace().ops.size(), 1);
    for (const TensorId id : choices_) {
      if (plan.storages[Index(id)].fate != Fate::kEvict) continue;
      for (const OpId writer : facts_->liveness().Writers(id)) {
        if (writer <= facts_->GapOf(id)->left) runs[Index(writer)] = 2;
      }
    }
    Duration time;
    for (size_t i = 0; i < runs.size(); ++i) {
      const KernelPlan& kernels = plan.kernels[i];
      time += (kernels.empty() ? least_times_[i] : TimeOf(trace().ops[i], kernels)) * runs[i];
    }
    return time;
  }

  // Schedules the plans by their profiles and runs them. Plans that cannot take less than `limit`
  // are not run, nor are plans whose trials are known, but all plans count as trials.
  void Score(std::span<Scored> plans, Duration limit = kNever) {
    left_ -= TrialsOf(plans.size());
    InParallel(plans.size(), [&](size_t i) {
      Scored& scored = plans[i];
      scored.time = kNever;
      if (options_.skip && LeastTimeOf(scored.plan) >= limit) return;
      Schedule(scored.plan, scored.profile);
      const Scored* same = options_.skip && tried_ ? FindWithDrops(*tried_, scored.plan) : nullptr;
      if (same != nullptr) {
        scored.time = same->time;
        scored.own = same->own;
        scored.fragmentation = same->fragmentation;
      } else {
        MakeTrial(scored);
      }
      if (scored.by_own) scored.profile = scored.own;
    });
    if (!tried_) return;
    std::ranges::copy_if(plans, std::back_inserter(*tried_),
                         [](const Scored& trial) { return trial.plan.drops && !trial.dropped; });
  }

  void MakeTrial(Scored& scored) const {
    scored.dropped = false;
    const auto judged = Judge(options_, {options_.iterations, 1, options_.reordered},
                              [&](const TrialOptions& options) {
                                PlanExecutor executor(facts_, scored.plan, options_.chooser);
                                Report report = trial_(executor, scored.plan.memory, options);
                                scored.dropped |= executor.dropped();
                                return report;
                              });
    if (!judged) return;
    scored.time = judged->time;
    scored.own = ProfileOf(scored.plan, judged->report);
    scored.fragmentation = judged->report.metrics.fragmentation();
  }

  // Scores the points of a grid. A point that cannot be among the `kClose` fastest is not run.
  void ScorePoints(std::span<Scored> points) {
    std::vector<Duration> fastest(kClose, kNever);  // the least times so far
    for (size_t i = 0; i < points.size(); i += kBatch) {
      const std::span<Scored> batch = points.subspan(i, std::min(kBatch, points.size() - i));
      Score(batch, fastest.back());
      for (const Scored& point : batch) {
        fastest.insert(std::ranges::upper_bound(fastest, point.time), point.time);
      }
      fastest.resize(kClose);
    }
  }

  // Returns the trial of the plan with `drops` that is the same without, or nullptr.
  static const Scored* FindWithDrops(const std::vector<Scored>& trials, const JointPlan& plan) {
    if (plan.drops) return nullptr;
    JointPlan with = plan;
    with.drops = true;
    const auto same = std::ranges::find_if(
        trials, [&](const Scored& trial) { return !trial.dropped && trial.plan == with; });
    return same == trials.end() ? nullptr : &*same;
  }

  int64_t TrialsOf(size_t plans) const {
    return static_cast<int64_t>(plans) * (options_.slower_link < 1 ? 2 : 1);
  }

  bool Take(std::span<Scored> plans) {
    const auto fastest = std::ranges::min_element(plans, {}, &Scored::time);
    if (fastest == plans.end() || fastest->time >= best_.time) return false;
    best_ = *fastest;
    return true;
  }

  // Returns the time to rebuild a storage when it is needed, if storages that `plan` evicts, and
  // storages that have ended by then, are not there. Returns kNever if it cannot be rebuilt. Adds
  // one in `relied_on`, if given, for each storage that the rebuild relies on.
  Duration RebuildCost(TensorId storage, const JointPlan& plan,
                       std::vector<int64_t>* relied_on = nullptr) const {
    const OpId at = facts_->GapOf(storage)->needed;
    std::vector<TensorId> open{storage}, seen{storage};
    Duration cost;
    for (size_t i = 0; i < open.size(); ++i) {
      const auto writers = facts_->liveness().Writers(open[i]);
      if (writers.empty() || open.size() > kLongestRebuild) return kNever;
      for (const OpId writer : writers) {
        if (writer >= at) break;
        if (!trace().op(writer).recomputable) return kNever;
        cost += facts_->TimeOf(writer);
        for (const TensorId input : trace().op(writer).inputs) {
          const TensorId id = facts_->liveness().Root(input);
          if (std::ranges::find(seen, id) != seen.end()) continue;
          seen.push_back(id);
          const bool gone =
              plan.storages[Index(id)].fate == Fate::kEvict || *facts_->liveness().LastUse(id) < at;
          const TensorKind kind = trace().tensor(id).kind;
          if (StaysOnDevice(kind)) continue;
          if (gone) {
            open.push_back(id);
          } else if (relied_on != nullptr) {
            ++(*relied_on)[Index(id)];
          }
        }
      }
    }
    return cost;
  }

  // Returns the storages that can be rebuilt, the cheapest per byte first. The cost of each counts
  // with all storages before it evicted. It includes the time by which rebuilding other storages
  // from it becomes longer.
  std::vector<TensorId> EvictionOrder(JointPlan plan) const {
    std::vector<int64_t> relied_on(trace().tensors.size());
    using Entry = std::pair<double, TensorId>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    const auto cost = [&](TensorId id) {
      const Duration time = RebuildCost(id, plan);
      if (time == kNever) return std::numeric_limits<double>::infinity();
      return static_cast<double>(time.picoseconds()) *
             static_cast<double>(1 + relied_on[Index(id)]) /
             static_cast<double>(Aligned(id).count());
    };
    for (const TensorId id : choices_) open.emplace(cost(id), id);
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
      RebuildCost(id, plan, &relied_on);
      plan.storages[Index(id)].fate = Fate::kEvict;
      order.push_back(id);
    }
    return order;
  }

  // Returns the best point of the grid with this `drops`, and also the best one in less memory if
  // that is faster. Returns an empty vector if none fits.
  std::vector<Scored> Grid(bool drops) {
    JointPlan keep(trace());
    keep.drops = drops;
    keep.memory = memory_;
    const Scored nothing{keep, kNever, KeepAll()};
    std::vector<Scored> points{nothing};
    Score(points);
    if (points[0].time <= in_core_) return points;
    AddGrid(nothing, points);
    ScorePoints(points);
    std::ranges::stable_sort(points, {}, &Scored::time);
    if (points.size() > kClose) points.erase(points.begin() + kClose, points.end());
    const size_t close = points.size();
    TryByOwnProfiles(points);
    if (points[0].time == kNever) return {};
    if (points[0].fragmentation < kHoles) return {points[0]};
    const std::vector<Scored> less = InLessMemory(std::span(points).first(close));
    const auto fastest = std::ranges::min_element(less, {}, &Scored::time);
    if (fastest == less.end() || fastest->time >= points[0].time) return {points[0]};
    return {points[0], *fastest};
  }

  // Appends the plans of the grid, which differ from `nothing`, the plan that keeps all storages:
  // the cheapest storages are evicted up to a share of what can be evicted, and others are
  // offloaded up to a share of what can be copied during the iteration.
  void AddGrid(const Scored& nothing, std::vector<Scored>& points) {
    const std::vector<TensorId> cheapest =
        options_.recompute ? EvictionOrder(nothing.plan) : std::vector<TensorId>();
    Bytes evictable;
    for (const TensorId id : cheapest) evictable += Aligned(id);
    const Bytes copyable = CopiedInCore();
    for (int evict = 0; evict <= kEvictSteps; ++evict) {
      JointPlan evicting = nothing.plan;
      Bytes evicted;
      for (const TensorId id : cheapest) {
        if (evicted * kEvictSteps >= evictable * evict) break;
        evicting.storages[Index(id)].fate = Fate::kEvict;
        evicted += Aligned(id);
      }
      for (int offload = 0; offload <= kOffloadSteps; ++offload) {
        JointPlan plan = evicting;
        Bytes offloaded;
        for (const TensorId id : choices_) {
          if (offloaded * 2 * kOffloadSteps >= copyable * offload) break;
          if (plan.storages[Index(id)].fate != Fate::kKeep) continue;
          plan.storages[Index(id)].fate = Fate::kOffload;
          offloaded += Aligned(id);
        }
        for (const bool again : {false, true}) {
          for (const TensorId id : cheapest) {
            StoragePlan& storage = plan.storages[Index(id)];
            storage.again = again && storage.fate == Fate::kEvict;
          }
          if (points.back().plan == plan) continue;
          points.push_back({plan, kNever, nothing.profile});
          Adjust(points.back().profile, nothing.plan, plan);
        }
        if (!options_.offload) break;
      }
    }
  }

  // Returns the bytes that can be copied to the host during an iteration in unlimited memory.
  Bytes CopiedInCore() const {
    const Duration in_core = facts_->StartOf(static_cast<OpId>(trace().ops.size() - 1));
    const double gib_time = static_cast<double>(
        facts_->cost().CopyTime(Direction::kToHost, Bytes::GiB(1)).picoseconds());
    return Bytes(static_cast<int64_t>(static_cast<double>(in_core.picoseconds()) / gib_time *
                                      static_cast<double>(Bytes::GiB(1).count())));
  }

  // Tries the plans again by their own profiles, with and without `apart`, and sorts all by time. A
  // plan that is good by its own profile can be bad by another one, so plans derived from it keep
  // that profile. REQUIRES: the plans are sorted by time.
  void TryByOwnProfiles(std::vector<Scored>& plans) {
    const size_t given = plans.size();
    for (size_t i = 0; i < given && plans[i].time != kNever; ++i) {
      for (const bool apart : {false, true}) {
        plans.push_back(plans[i]);
        plans.back().plan.apart = apart;
        plans.back().by_own = true;
        plans.back().profile = plans[i].own;
      }
    }
    Score(std::span(plans).subspan(given));
    std::ranges::stable_sort(plans, {}, &Scored::time);
  }

  // Tries plans, which are sorted by time, in less memory, with at most a few of the trials.
  std::vector<Scored> InLessMemory(std::span<const Scored> plans) {
    const size_t best =
        std::min(plans.size(), static_cast<size_t>(std::max<int64_t>(0, left_ / 100)));
    std::vector<Scored> less;
    for (size_t i = 0; i < best && plans[i].time != kNever; ++i) {
      for (const int64_t percent : kParts) {
        less.push_back(plans[i]);
        less.back().plan.memory =
            RoundDown(Bytes(memory_.count() / 100 * percent), facts_->alignment());
      }
    }
    Score(less);
    return less;
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
  void AddMoves(std::span<const TensorId> storages, std::vector<Move>& moves) const {
    std::vector<StoragePlan> others{{Fate::kKeep, OpId{}, false}};
    if (options_.offload) others.push_back({Fate::kOffload, OpId{}, false});
    if (options_.recompute && facts_->RebuildTime(storages.front())) {
      others.push_back({Fate::kEvict, OpId{}, false});
      others.push_back({Fate::kEvict, OpId{}, true});
    }
    for (const StoragePlan& other : others) {
      moves.push_back([storages, other](JointPlan& plan) {
        for (const TensorId id : storages) {
          StoragePlan& storage = plan.storages[Index(id)];
          storage = {other.fate, storage.prefetch, other.again};
        }
      });
    }
  }

  // Adds the changes of the kernels of all of these ops, which are copies.
  void AddMoves(std::span<const OpId> ops, std::vector<Move>& moves) const {
    // This also fills the chooser's cache, which several threads will read.
    std::vector<KernelPlan> ways = options_.chooser.Ways(facts_->cost(), trace().op(ops.front()));
    if (!options_.kernels || ways.size() < 2) return;
    ways.insert(ways.begin(), KernelPlan());
    for (const KernelPlan& way : ways) {
      moves.push_back([ops, way](JointPlan& plan) {
        for (const OpId op : ops) plan.kernels[Index(op)] = way;
      });
    }
  }

  // Returns all changes of a single decision, on all copies of a storage or an op first, then on
  // each half of them, each quarter, and so on.
  std::vector<Move> Moves() const {
    std::vector<Move> moves;
    if (!choices_.empty()) moves.push_back([](JointPlan& plan) { plan.apart = !plan.apart; });
    const Copies& copies = facts_->copies();
    for (size_t parts = 1;; parts *= 2) {
      const auto storages = Cut(copies.storages, parts);
      const auto ops = Cut(copies.ops, parts);
      if (storages.empty() && ops.empty()) return moves;
      for (const auto& part : storages) {
        if (IsChoice(part.front())) AddMoves(part, moves);
      }
      for (const auto& part : ops) AddMoves(part, moves);
    }
  }

  // Returns `from` after some moves, to be scored, or nullopt if they change nothing.
  std::optional<Scored> After(const Scored& from, std::span<const size_t> moves) const {
    Scored next = from;
    for (const size_t move : moves) moves_[move](next.plan);
    if (next.plan == from.plan) return std::nullopt;
    Adjust(next.profile, from.plan, next.plan);
    return next;
  }

  // Tries every move from the `next` on, and then every move while a move helped, for at most
  // `trials` trials.
  void Sweep(int64_t trials, size_t next = 0) {
    const int64_t rest = left_ - trials;
    bool improved = false;
    while (left_ > rest && !Enough()) {
      if (next >= moves_.size() && !std::exchange(improved, false)) return;
      if (next >= moves_.size()) next = 0;
      std::vector<Scored> batch;
      for (; next < moves_.size() && batch.size() < kBatch; ++next) {
        if (auto after = After(best_, {&next, 1})) batch.push_back(*std::move(after));
      }
      Score(batch, best_.time);
      improved |= Take(batch);
    }
  }

  // Walks from the best plan to neighbours, which may be slower by a share that falls to 0.
  void Walk() {
    Scored at = best_;
    const int64_t all = std::max<int64_t>(left_, 1);
    std::mt19937_64 random(options_.seed);
    while (left_ > 0 && !Enough()) {
      std::vector<Scored> batch;
      for (int tries = 0; batch.size() < kBatch && tries < 100; ++tries) {
        // The moves are of storages, or of kernels, that are near each other.
        std::vector<size_t> moves(1 + random() % 3);
        const size_t near = random() % moves_.size();
        for (size_t& move : moves) {
          move = std::min(near + random() % kNear, moves_.size() - 1);
        }
        if (auto next = After(at, moves)) batch.push_back(*std::move(next));
      }
      if (batch.empty()) return;
      const double heat =
          kHeat * static_cast<double>(left_ - TrialsOf(batch.size())) / static_cast<double>(all);
      const auto allowed = Duration::Picoseconds(
          std::llround(static_cast<double>(at.time.picoseconds()) * (1 + heat)));
      Score(batch, std::max(best_.time, allowed));
      Take(batch);
      const auto fastest = std::ranges::min_element(batch, {}, &Scored::time);
      if (fastest->time < allowed) at = *fastest;
    }
  }

  const std::shared_ptr<const JointFacts> facts_;
  const TrialRun& trial_;
  const Bytes memory_;
  const Duration in_core_;
  const SearchOptions options_;
  Bytes largest_;                      // of the storages that may move
  std::vector<TensorId> choices_;      // the storages to decide on, in the order of `Gap::written`
  std::vector<Duration> least_times_;  // by op
  std::vector<Move> moves_;
  // Trials of grids with `drops` that dropped nothing. The sweeps need them no more.
  std::optional<std::vector<Scored>> tried_{std::in_place};
  int64_t left_ = 0;  // the trials that are left
  Scored best_;
};

}  // namespace

std::optional<Judged> Judge(const SearchOptions& search, TrialOptions options,
                            const std::function<Report(const TrialOptions&)>& run) {
  Judged judged{run(options), {}};
  if (!judged.report.fits()) return std::nullopt;
  judged.time = judged.report.metrics.iteration;
  if (search.slower_link == 1) return judged;
  options.link = search.slower_link;
  const Report slower = run(options);
  if (!slower.fits()) return std::nullopt;
  const Duration both = judged.time + slower.metrics.iteration;
  judged.time = Duration::Picoseconds(both.picoseconds() / 2);
  return judged;
}

std::optional<JointPlan> SearchPlan(std::shared_ptr<const JointFacts> facts, const TrialRun& trial,
                                    Bytes memory, Duration in_core, const SearchOptions& options) {
  return Search(std::move(facts), trial, memory, in_core, options).Run();
}

}  // namespace spillway
