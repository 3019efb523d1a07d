#include "policies/recorded/step_search.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "policies/parts/in_parallel.h"
#include "policies/recorded/step_executor.h"
#include "traces/liveness.h"

namespace spillway {
namespace {

// The number of rungs between the floor and the memory of the step as it is: fewer for long steps,
// so that each has about so many trials. Rungs lie closer near the floor, where time falls fastest.
constexpr int64_t kFewestRungs = 24;
constexpr int64_t kMostRungs = 64;
constexpr int64_t kTrialsOfRung = 12;
// Plans that are tried at the same time. It is not the number of cores, because the result must
// not depend on that.
constexpr size_t kBatch = 16;
// A plan whose trial takes more than the budget, or waits for copies, is changed and tried again so
// often.
constexpr int kAgain = 3;
// Shorter waits for copies do not count.
constexpr Duration kShortWait = Duration::Microseconds(20);
// A plan that takes at most one part in so many longer than the step with hooks alone is not
// improved.
constexpr int64_t kEnough = 1000;
// A guess takes a copy for a part of its time, because copies run beside ops, until all copies to
// the host take a part of the step. From then on it takes a copy for many times its time.
struct Guess {
  double copy;
  double link;
};
constexpr std::array<Guess, 16> kGuesses{{{0.02, 0.15},
                                          {0.02, 0.3},
                                          {0.02, 0.5},
                                          {0.001, 100},
                                          {0.1, 0.15},
                                          {0.1, 0.3},
                                          {0.1, 0.5},
                                          {0.1, 100},
                                          {0.4, 0.15},
                                          {0.4, 0.3},
                                          {0.4, 0.5},
                                          {0.4, 100},
                                          {1.5, 0.3},
                                          {1.5, 100},
                                          {4, 100},
                                          {16, 100}}};
constexpr double kFullLink = 16;
// Storages that are offloaded stay first if copies take more than this part of the step, and
// otherwise those whose recomputation takes more than this part of their copy.
constexpr double kBusyLink = 0.4;
constexpr double kBesideCopy = 0.03;
constexpr size_t kNew = 2;  // guesses that are made again on each rung, in turn
// The search has one part in this many of the trials on the floor, where it begins with nothing.
constexpr int64_t kOnFloor = 3;
// A prefetch is planned to end this long before it has to.
constexpr Duration kSlack = Duration::Microseconds(500);
constexpr size_t kLongestChain = 100;  // storages

constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Fate : uint8_t { kKeep, kOffload, kEvict };

using Fates = std::vector<Fate>;       // by index in `StepPlaces::storages`
using Profile = std::vector<int64_t>;  // bytes by op

// The decisions of a plan, what it is, and what its trial was.
struct Tried {
  Fates fates;
  size_t guess = 0;  // in `kGuesses`: it began with this one
  StepPlan plan;
  Bytes peak;
  Duration time = Duration::Max();  // `Max` if it has not been tried
  Profile missed;                   // bytes that the trial took beyond the guess, by op
  std::vector<double> waited;       // by movable: seconds that ops of trials waited for its copies
};

class Search {
 public:
  Search(const Trace& trace, const CostModel& cost, const StepPlaces& places, const TrialRun& trial)
      : trace_(trace), liveness_(trace), places_(places), trial_(trial), fixed_(trace.ops.size()) {
    index_.resize(trace.tensors.size());
    starts_.push_back(Duration());
    for (const Op& op : trace.ops) starts_.push_back(starts_.back() + op.recorded->time);
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      fixed_[i] += trace.ops[i].recorded->workspace.count();
    }
    for (size_t i = 0; i < places.storages().size(); ++i) AddMovable(i, cost);
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness_.Root(id) == id && !index_[i]) AddPresence(id);
    }
    AddChanges();
    Tried nothing;
    nothing.waited.resize(movable_.size());
    Run(nothing, fixed_);
    enough_ =
        Duration::Picoseconds(nothing.time.picoseconds() + nothing.time.picoseconds() / kEnough);
  }

  // Returns the best plan in the budget, beginning with the one of a smaller budget, if there is
  // one.
  Tried Climb(Tried below, Bytes budget, size_t round, int64_t trials) {
    Tried best = std::move(below);
    std::vector<Tried> batch = Guesses(best, round);
    InParallel(batch.size(), [&](size_t i) { Fit(batch[i], budget.count(), kNone); });
    // Guesses that agree are tried once.
    std::ranges::stable_sort(batch, {}, &Tried::fates);
    batch.erase(std::ranges::unique(batch, {}, &Tried::fates).begin(), batch.end());
    trials -= Try(batch, best, budget, {});
    std::vector<Change> better;  // they made the plan faster alone
    size_t in_vain = 0;
    while (trials > 0 && in_vain < changes_.size() && best.time > enough_) {
      batch.clear();
      std::vector<Change> made;
      const size_t size = std::min(kBatch, static_cast<size_t>(trials));
      for (; batch.size() < size && in_vain < changes_.size(); ++in_vain) {
        const Change change = changes_[next_++ % changes_.size()];
        if (best.fates[change.storage] == change.fate) continue;
        batch.push_back(best);
        batch.back().fates[change.storage] = change.fate;
        made.push_back(change);
      }
      if (better.size() > 1) {
        batch.push_back(best);
        for (const Change& change : better) batch.back().fates[change.storage] = change.fate;
      }
      const auto before = Rank(best, budget);
      trials -= Try(batch, best, budget, made);
      better.clear();
      if (Rank(best, budget) < before) in_vain = 0;
      for (size_t i = 0; i < made.size(); ++i) {
        if (ranks_[i] < before) better.push_back(made[i]);
      }
    }
    return best;
  }

 private:
  // A storage that may move.
  struct Movable {
    const StepPlaces::Times* times = nullptr;
    int64_t size = 0;
    size_t begin = 0;            // the first op at which it is there
    std::optional<size_t> free;  // the first op before which it can be released
    Duration copy;               // of one copy
    Duration again;              // of the ops that make it
    bool offload = false, evict = false;
  };
  struct Change {
    size_t storage = 0;
    Fate fate{};
  };
  // A time at which a storage has to be there: [from, to].
  struct Need {
    size_t from = 0, to = 0;
  };
  using Needs = std::vector<std::vector<Need>>;  // by movable, ascending

  void AddMovable(size_t i, const CostModel& cost) {
    const StepPlaces::Times& times = places_.storages()[i];
    const Tensor& tensor = trace_.tensor(times.storage);
    Movable movable;
    movable.times = &times;
    movable.size = tensor.size.count();
    const bool arrives = tensor.kind == TensorKind::kInput;
    movable.begin = arrives ? 0 : Index(liveness_.Uses(times.storage).front());
    const auto taken = Index(times.reads.front().taken);
    movable.free = places_.FirstFrom(Index(times.left) + 1);
    movable.copy = std::max(cost.CopyTime(Direction::kToHost, tensor.size),
                            cost.CopyTime(Direction::kToDevice, tensor.size));
    const bool may = tensor.movable && Index(times.left) + 1 < taken;
    movable.offload = may && trace_.hooks->offload && trace_.hooks->prefetch && movable.free &&
                      *movable.free < taken;
    const auto writers = liveness_.Writers(times.storage);
    movable.evict = may && trace_.hooks->evict && !writers.empty();
    for (const OpId writer : writers) {
      if (writer > times.left) break;
      movable.evict &= trace_.op(writer).recomputable;
      movable.again += AgainTime(writer);
    }
    index_[Index(times.storage)] = i;
    movable_.push_back(movable);
  }

  // Returns plans to begin with: guesses, and the best plan, of whose storages now more may stay.
  std::vector<Tried> Guesses(const Tried& best, size_t round) const {
    const bool first = best.time == Duration::Max();
    std::vector<Tried> guesses;
    for (size_t i = 0; i < kGuesses.size(); ++i) {
      const size_t turn = (i + kGuesses.size() - round * kNew % kGuesses.size()) % kGuesses.size();
      if (!first && i != best.guess && turn >= kNew) continue;
      Tried& guess = guesses.emplace_back();
      guess.fates.resize(movable_.size());
      guess.guess = i;
      guess.missed = best.missed;
      guess.waited.resize(movable_.size());
    }
    if (!first) guesses.push_back(best);
    return guesses;
  }

  Duration AgainTime(OpId op) const {
    const auto& recorded = *trace_.op(op).recorded;
    return recorded.again ? recorded.again->time : recorded.time;
  }

  void AddPresence(TensorId id) {
    const Tensor& tensor = trace_.tensor(id);
    const auto uses = liveness_.Uses(id);
    const bool stays =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    if (uses.empty() && !stays) return;
    const size_t begin = stays || tensor.kind == TensorKind::kInput ? 0 : Index(uses.front());
    Add(fixed_, begin, stays ? fixed_.size() : Index(uses.back()) + 1, tensor.size.count());
  }

  static void Add(Profile& profile, size_t begin, size_t end, int64_t bytes) {
    for (size_t op = begin; op < end; ++op) profile[op] += bytes;
  }

  // Calls `use(i)` for each movable from which the recomputation of a movable at an op begins, and
  // returns the seconds of the recomputation, without what these take. Returns kNever if it is
  // impossible.
  template <typename Use>
  double Recompute(size_t storage, size_t at, const Fates& fates, const Use& use) const {
    std::vector<TensorId> open{movable_[storage].times->storage};
    double cost = 0;
    for (size_t i = 0; i < open.size(); ++i) {
      const auto writers = liveness_.Writers(open[i]);
      if (writers.empty() || open.size() > kLongestChain) return kNever;
      for (const OpId writer : writers) {
        if (Index(writer) >= at) break;
        if (!trace_.op(writer).recomputable) return kNever;
        cost += Seconds(AgainTime(writer));
        for (const TensorId input : trace_.op(writer).inputs) {
          const TensorId id = liveness_.Root(input);
          if (std::ranges::find(open, id) != open.end()) continue;
          const TensorKind kind = trace_.tensor(id).kind;
          if (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState) continue;
          const auto source = index_[Index(id)];
          if (source) use(*source);
          const bool evicted = source && fates[*source] == Fate::kEvict;
          if (evicted || Index(*liveness_.LastUse(id)) < at) open.push_back(id);
        }
      }
    }
    return cost;
  }

  static double Seconds(Duration time) { return static_cast<double>(time.picoseconds()) * 1e-12; }

  // Returns when each storage that is not kept has to be there.
  Needs NeedsOf(const Fates& fates) const {
    Needs needs(movable_.size());
    for (size_t i = 0; i < movable_.size(); ++i) {
      if (fates[i] == Fate::kKeep) continue;
      for (const StepPlaces::Read& read : movable_[i].times->reads) {
        needs[i].push_back({Index(read.taken), Index(read.last)});
      }
    }
    // What is recomputed for a read needs its sources then, and so do they if they are evicted.
    for (size_t i = 0; i < movable_.size(); ++i) {
      if (fates[i] != Fate::kEvict) continue;
      for (const StepPlaces::Read& read : movable_[i].times->reads) {
        const size_t at = Index(read.taken);
        Recompute(i, at, fates, [&](size_t source) {
          const auto& times = *movable_[source].times;
          const bool ended = at > Index(times.reads.back().last);
          if (fates[source] != Fate::kKeep && !ended) needs[source].push_back({at, at});
        });
      }
    }
    for (auto& of : needs) {
      std::ranges::sort(of, {}, [](const Need& need) { return std::pair(need.from, -need.to); });
      std::vector<Need> merged;
      for (const Need& need : of) {
        if (merged.empty() || need.from > merged.back().to) {
          merged.push_back(need);
        } else {
          merged.back().to = std::max(merged.back().to, need.to);
        }
      }
      of = std::move(merged);
    }
    return needs;
  }

  size_t LeavesAt(size_t i, Fate fate) const {
    return fate == Fate::kOffload ? *movable_[i].free : Index(movable_[i].times->left) + 1;
  }

  // Returns the bytes by op if each storage that is not kept is there only when it has to be.
  Profile ProfileOf(const Fates& fates, const Needs& needs) const {
    Profile profile(fixed_.size() + 1);  // changes at first
    const auto add = [&](size_t begin, size_t end, int64_t bytes) {
      profile[begin] += bytes;
      profile[end] -= bytes;
    };
    for (size_t i = 0; i < movable_.size(); ++i) {
      const Movable& movable = movable_[i];
      if (fates[i] == Fate::kKeep) {
        add(movable.begin, Index(liveness_.Uses(movable.times->storage).back()) + 1, movable.size);
        continue;
      }
      add(movable.begin, LeavesAt(i, fates[i]), movable.size);
      for (const Need& need : needs[i]) add(need.from, need.to + 1, movable.size);
    }
    profile.pop_back();
    std::partial_sum(profile.begin(), profile.end(), profile.begin());
    for (size_t op = 0; op < profile.size(); ++op) profile[op] += fixed_[op];
    return profile;
  }

  // Returns what it costs that a storage has a fate, in seconds, as far as is known. `relied_on`
  // says, by movable, of how many recomputations it is a part.
  double CostOf(size_t i, Fate fate, const Tried& tried, double copy_share,
                const std::vector<int64_t>& relied_on) const {
    const Movable& movable = movable_[i];
    if (fate == Fate::kKeep) return 0;
    if (fate == Fate::kOffload)
      return movable.offload ? copy_share * Seconds(movable.copy) + tried.waited[i] : kNever;
    if (!movable.evict) return kNever;
    const double recompute =
        Recompute(i, Index(movable.times->reads.front().taken), tried.fates, [](size_t) {});
    return (recompute + Seconds(trace_.hooks->evict.value_or(Duration()))) *
           static_cast<double>(1 + relied_on[i]);
  }

  // Returns what `ProfileOf` and the last trial say.
  Profile GuessOf(const Tried& tried) const {
    Profile profile = ProfileOf(tried.fates, NeedsOf(tried.fates));
    for (size_t op = 0; op < tried.missed.size(); ++op) profile[op] += tried.missed[op];
    return profile;
  }

  // Returns the storages that are recomputed at the op, for a read or for another recomputation,
  // and that could be offloaded.
  std::vector<size_t> RebuiltAt(size_t op, const Fates& fates, size_t locked) const {
    std::vector<size_t> recomputed;
    const auto consider = [&](size_t i) {
      if (fates[i] == Fate::kEvict && movable_[i].offload && i != locked) recomputed.push_back(i);
    };
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] != Fate::kEvict) continue;
      const auto& reads = movable_[i].times->reads;
      const auto here = std::ranges::find(reads, static_cast<OpId>(op), &StepPlaces::Read::taken);
      if (here == reads.end()) continue;
      consider(i);
      Recompute(i, op, fates, consider);
    }
    std::ranges::sort(recomputed);
    recomputed.erase(std::ranges::unique(recomputed).begin(), recomputed.end());
    return recomputed;
  }

  // Changes fates until the guess fits, and then keeps what there is room for. Neither changes the
  // fate of the storage `locked`.
  void Fit(Tried& tried, int64_t budget, size_t locked) const {
    Fates& fates = tried.fates;
    std::vector<int64_t> relied_on(movable_.size());
    const auto rely = [&](size_t i, int64_t change) {
      Recompute(i, Index(movable_[i].times->reads.front().taken), fates,
                [&](size_t source) { relied_on[source] += change; });
    };
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == Fate::kEvict) rely(i, 1);
    }
    Profile profile = GuessOf(tried);
    // Returns the ops at which the storage is there because it is kept.
    const auto gap = [&](size_t i, Fate fate) {
      return std::pair(LeavesAt(i, fate), Index(movable_[i].times->reads.front().taken));
    };
    double link = kGuesses[tried.guess].link * Seconds(starts_.back());  // what is left of it
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == Fate::kOffload) link -= Seconds(movable_[i].copy);
    }
    const auto copy_share = [&] { return link > 0 ? kGuesses[tried.guess].copy : kFullLink; };
    const auto change = [&](size_t i, Fate fate) {
      const Fate from = fates[i];
      if (from == Fate::kOffload) link += Seconds(movable_[i].copy);
      if (fate == Fate::kOffload) link -= Seconds(movable_[i].copy);
      for (const auto& [f, sign] : {std::pair(from, 1), std::pair(fate, -1)}) {
        if (f == Fate::kKeep) continue;
        const auto [begin, end] = gap(i, f);
        Add(profile, begin, end, sign * movable_[i].size);
      }
      if (from == Fate::kEvict) rely(i, -1);
      fates[i] = fate;
      if (fate == Fate::kEvict) rely(i, 1);
    };
    while (true) {
      const auto most = std::ranges::max_element(profile);
      if (*most <= budget) break;
      const auto at = static_cast<size_t>(most - profile.begin());
      std::optional<std::pair<size_t, Fate>> cheapest;
      double least = kNever;
      for (size_t i = 0; i < fates.size(); ++i) {
        if (fates[i] != Fate::kKeep || i == locked) continue;
        for (const Fate fate : {Fate::kOffload, Fate::kEvict}) {
          if (fate == Fate::kOffload ? !movable_[i].offload : !movable_[i].evict) continue;
          const auto [begin, end] = gap(i, fate);
          if (at < begin || at >= end) continue;
          const double cost = CostOf(i, fate, tried, copy_share(), relied_on) /
                              static_cast<double>(movable_[i].size);
          if (cost < least) {
            least = cost;
            cheapest = {i, fate};
          }
        }
      }
      // What is recomputed here may be what takes too much, with what it is recomputed from.
      std::vector<std::pair<double, size_t>>
          recomputed;  // by their cost for what they may save here
      for (const size_t i : RebuiltAt(at, fates, locked)) {
        double sources = 0;
        Recompute(i, at, fates, [&](size_t source) {
          if (fates[source] != Fate::kKeep) sources += static_cast<double>(movable_[source].size);
        });
        const double cost = CostOf(i, Fate::kOffload, tried, copy_share(), relied_on) -
                            CostOf(i, Fate::kEvict, tried, copy_share(), relied_on);
        if (sources > 0 && cost / sources < least) recomputed.emplace_back(cost / sources, i);
      }
      std::ranges::sort(recomputed);
      size_t offloaded = kNone;
      for (size_t k = 0; k < recomputed.size() && offloaded == kNone; ++k) {
        const size_t i = recomputed[k].second;
        fates[i] = Fate::kOffload;
        if (GuessOf(tried)[at] < *most) offloaded = i;
        fates[i] = Fate::kEvict;
      }
      if (offloaded != kNone) {
        change(offloaded, Fate::kOffload);
        profile = GuessOf(tried);
      } else if (cheapest) {
        change(cheapest->first, cheapest->second);
      } else {
        break;
      }
    }
    const bool full = kGuesses[tried.guess].link * Seconds(starts_.back()) - link >
                      kBusyLink * Seconds(starts_.back());
    std::vector<std::pair<double, size_t>> moved;
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == Fate::kKeep || i == locked) continue;
      moved.emplace_back(-CostOf(i, fates[i], tried, full ? kFullLink : kBesideCopy, relied_on) /
                             static_cast<double>(movable_[i].size),
                         i);
    }
    std::ranges::sort(moved);
    for (const auto& [cost, i] : moved) {
      const auto [begin, end] = gap(i, fates[i]);
      const auto room = std::ranges::subrange(profile.begin() + static_cast<ptrdiff_t>(begin),
                                              profile.begin() + static_cast<ptrdiff_t>(end));
      if (std::ranges::all_of(room, [&](int64_t b) { return b + movable_[i].size <= budget; })) {
        change(i, Fate::kKeep);
      }
    }
  }

  // Makes the plan of the fates, and returns the guess of its bytes. Storages stay longer, and come
  // back earlier, than they have to, where there is room.
  Profile Schedule(Tried& tried, int64_t budget) const {
    const Fates& fates = tried.fates;
    const Needs needs = NeedsOf(fates);
    Profile profile = ProfileOf(fates, needs);
    const auto has_room = [&](size_t op, int64_t size) {
      return profile[op] + (tried.missed.empty() ? 0 : std::max<int64_t>(0, tried.missed[op])) +
                 size <=
             budget;
    };
    // A stretch between two needs of a storage.
    struct Stretch {
      size_t begin, end, storage, next;  // `next` is the need at its end
    };
    std::vector<Stretch> stretches, returns;
    std::vector<size_t> leave(fates.size());
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == Fate::kKeep) continue;
      leave[i] = LeavesAt(i, fates[i]);
      for (size_t next = 1; next < needs[i].size(); ++next) {
        stretches.push_back({needs[i][next - 1].to + 1, needs[i][next].from, i, next});
      }
    }
    std::ranges::stable_sort(stretches, {}, [](const Stretch& s) { return s.end - s.begin; });
    std::vector<std::vector<bool>> stays(fates.size());
    for (size_t i = 0; i < fates.size(); ++i) stays[i].resize(needs[i].size());
    for (const Stretch& s : stretches) {
      const int64_t size = movable_[s.storage].size;
      size_t op = s.begin;
      while (op < s.end && has_room(op, size)) ++op;
      if (op < s.end) {
        if (fates[s.storage] == Fate::kOffload) returns.push_back(s);
        continue;
      }
      Add(profile, s.begin, s.end, size);
      stays[s.storage][s.next] = true;
    }
    // A release waits for the copy, and copies run one after another.
    Duration copied;
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] != Fate::kOffload) continue;
      const Movable& movable = movable_[i];
      copied = std::max(copied, starts_[Index(movable.times->packed)]) + movable.copy;
      size_t& op = leave[i];
      const size_t end = needs[i].front().from;
      while (op + 1 < end && starts_[op] < copied && has_room(op, movable.size)) {
        profile[op++] += movable.size;
      }
      const size_t place = std::max(*movable.free, *places_.LastBefore(op));
      Add(profile, place, op, -movable.size);
      op = place;
      returns.push_back({op, end, i, 0});
    }
    std::ranges::stable_sort(returns, {}, &Stretch::end);
    std::vector<Duration> latest(returns.size());
    Duration next = Duration::Max();
    for (size_t k = returns.size(); k-- > 0;) {
      next = std::min(next, starts_[returns[k].end] - kSlack) - movable_[returns[k].storage].copy;
      latest[k] = next;
    }
    std::vector<std::vector<size_t>> prefetches(fates.size());
    for (size_t k = 0; k < returns.size(); ++k) {
      const Stretch& s = returns[k];
      const int64_t size = movable_[s.storage].size;
      size_t op = s.end;
      while (op > s.begin && starts_[op] > latest[k] && has_room(op - 1, size)) {
        profile[--op] += size;
      }
      const size_t place = std::min(places_.FirstFrom(op).value_or(s.end), s.end);
      Add(profile, op, place, -size);
      prefetches[s.storage].push_back(place);
    }
    tried.plan.storages.clear();
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == Fate::kKeep) continue;
      StepPlan::Storage& storage = tried.plan.storages.emplace_back();
      storage.storage = movable_[i].times->storage;
      storage.fate = fates[i] == Fate::kOffload ? StepPlan::Fate::kOffload : StepPlan::Fate::kEvict;
      if (fates[i] == Fate::kOffload) storage.release = leave[i];
      storage.prefetches = std::move(prefetches[i]);
      std::ranges::sort(storage.prefetches);
      for (size_t k = 0; k < needs[i].size(); ++k) {
        if (k + 1 < needs[i].size() && stays[i][k + 1]) continue;
        storage.drops.push_back(DropOf(i, needs[i][k]));
      }
    }
    return profile;
  }

  // Returns the op that names in a plan that the storage is given up after a need: of its own last
  // read in it, if there is one.
  size_t DropOf(size_t i, const Need& need) const {
    size_t drop = need.to;
    for (const StepPlaces::Read& read : movable_[i].times->reads) {
      if (Index(read.taken) >= need.from && Index(read.taken) <= need.to) drop = Index(read.taken);
    }
    return drop;
  }

  // Returns by what plans compare, less for the better one: a plan that does not fit by its peak.
  static std::tuple<bool, Bytes, Duration> Rank(const Tried& tried, Bytes budget) {
    const bool known = tried.time != Duration::Max();
    return {!known, known ? std::max(tried.peak, budget) : Bytes(0), tried.time};
  }

  // Makes and tries the plans, and takes the best one of them and `best`. The first plans are the
  // results of changes, which stay. Of the others, storages whose copies ops waited for are planned
  // again. Returns the number of trials.
  int64_t Try(std::vector<Tried>& batch, Tried& best, Bytes budget,
              std::span<const Change> changes) {
    std::vector<int64_t> trials(batch.size());
    InParallel(batch.size(), [&](size_t i) {
      Tried& tried = batch[i];
      const size_t locked = i < changes.size() ? changes[i].storage : kNone;
      Tried found;
      for (int again = 0; again <= kAgain; ++again) {
        const StepPlan last = std::move(tried.plan);
        Fit(tried, budget.count(), locked);
        const Profile guess = Schedule(tried, budget.count());
        if (tried.plan == last && tried.time != Duration::Max()) break;
        const bool waits = Run(tried, guess);
        ++trials[i];
        if (Rank(tried, budget) < Rank(found, budget)) found = tried;
        if (tried.peak > budget) continue;
        if (locked != kNone || !waits) break;
        for (size_t k = 0; k < movable_.size(); ++k) {
          if (tried.waited[k] > 0 && tried.fates[k] == Fate::kOffload) tried.fates[k] = Fate::kKeep;
        }
      }
      tried = std::move(found);
    });
    ranks_.clear();
    for (Tried& tried : batch) {
      ranks_.push_back(Rank(tried, budget));
      if (ranks_.back() < Rank(best, budget)) best = std::move(tried);
    }
    return std::accumulate(trials.begin(), trials.end(), int64_t{0});
  }

  // Tries the plan, and returns whether ops waited for copies.
  bool Run(Tried& tried, const Profile& guess) const {
    StepExecutor executor(tried.plan, places_, trace_.ops.size());
    const Report report = trial_(executor, Bytes::Unlimited(), {.iterations = 1});
    tried.peak = report.metrics.peak_allocated;
    tried.time = report.metrics.iteration;
    const std::vector<Bytes> used = UsedBytes(report);
    tried.missed.resize(guess.size());
    for (size_t op = 0; op < guess.size(); ++op) {
      const int64_t took = op < used.size() ? used[op].count() : 0;
      tried.missed[op] = took - guess[op];
    }
    return AddWaits(report, tried.waited);
  }

  // Adds how long ops waited while the copies of storages ran. Returns whether one waited.
  bool AddWaits(const Report& report, std::vector<double>& waited) const {
    std::vector<const TimelineEntry*> copies;
    for (const TimelineEntry& entry : report.timeline) {
      if (entry.kind != CommandKind::kKernel) copies.push_back(&entry);
    }
    bool any = false;
    Duration free;  // the device has no earlier op to run from then on
    for (const TimelineEntry& entry : report.timeline) {
      if (entry.kind != CommandKind::kKernel) continue;
      const Duration begin = std::max(free, entry.interval.issued);
      const Duration end = entry.interval.start;
      free = entry.interval.end;
      if (end - begin < kShortWait) continue;
      for (const TimelineEntry* copy : copies) {
        const auto i = index_[Index(copy->tensor)];
        if (!i || copy->interval.end <= begin || copy->interval.end > end) continue;
        waited[*i] += Seconds(copy->interval.end - std::max(copy->interval.start, begin));
        any = true;
      }
    }
    return any;
  }

  // Adds all changes of one storage, of the largest storages first.
  void AddChanges() {
    std::vector<size_t> order(movable_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return movable_[i].size; });
    for (const size_t i : order) {
      if (movable_[i].offload || movable_[i].evict) changes_.push_back({i, Fate::kKeep});
      if (movable_[i].offload) changes_.push_back({i, Fate::kOffload});
      if (movable_[i].evict) changes_.push_back({i, Fate::kEvict});
    }
  }

  const Trace& trace_;
  const Liveness liveness_;
  const StepPlaces& places_;
  const TrialRun& trial_;
  std::vector<Movable> movable_;
  std::vector<std::optional<size_t>> index_;  // of the movable, by tensor
  std::vector<Duration> starts_;              // by op
  Profile fixed_;                             // what no plan moves
  std::vector<Change> changes_;
  Duration enough_;
  size_t next_ = 0;  // the change that is tried next, counted on from round to round
  std::vector<std::tuple<bool, Bytes, Duration>> ranks_;  // of the plans tried last
};

}  // namespace

std::vector<StepRung> SearchSteps(const Trace& trace, const CostModel& cost,
                                  const StepPlaces& places, const TrialRun& trial,
                                  const StepSearchOptions& options) {
  Search search(trace, cost, places, trial);
  std::vector<StepRung> rungs;
  Tried best;
  const int64_t count = std::clamp(options.trials / kTrialsOfRung, kFewestRungs, kMostRungs);
  const int64_t range = (options.eager_peak - options.floor).count();
  for (int64_t i = 0; i < count; ++i) {
    const double share = static_cast<double>(i * i) / static_cast<double>(count * count);
    const Bytes memory =
        options.floor + Bytes(static_cast<int64_t>(static_cast<double>(range) * share));
    if (memory > options.memory) break;
    // What low rungs find serves the higher ones.
    const int64_t trials =
        i == 0 ? options.trials / kOnFloor : options.trials * (count - i) / (count * count);
    best = search.Climb(std::move(best), memory, static_cast<size_t>(i), trials);
    rungs.push_back({memory, best.peak <= memory, best.plan, best.peak, best.time});
  }
  return rungs;
}

}  // namespace spillway
