#include "policies/recorded/step_search.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "policies/parts/in_parallel.h"
#include "policies/recorded/step_executor.h"
#include "policies/recorded/step_guess.h"
#include "policies/recorded/step_memory.h"
#include "policies/recorded/step_schedule.h"

namespace spillway::policies {
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
// Guesses differ in what they take copies for (`copy` and `link`), and in the part of its time for
// which the recomputation of a storage counts for each other one that is recomputed from it: if the
// storage stays until all are made, it is made once.
struct CopyPrice {
  double copy, link;
};
constexpr std::array<CopyPrice, 16> kPrices{{{0.02, 0.15},
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
constexpr std::array<double, 3> kReliedOn{1, 0, 0.3};
constexpr size_t kGuesses = kPrices.size() * kReliedOn.size();
constexpr size_t kNew = 4;  // guesses that are made again on each rung, in turn
// The search has one part in this many of the trials on the floor, where it begins with nothing.
constexpr int64_t kOnFloor = 3;

// A draft, its plan, and what its trial was.
struct Tried : StepDraft {
  size_t guess = 0;  // it began with this one
  StepPlan plan;
  Bytes peak;
  Duration time = Duration::Max();  // `Max` if it has not been tried
};

class Search {
 public:
  Search(const Trace& trace, const CostModel& cost, const StepPlaces& places, const TrialRun& trial)
      : memory_(trace, cost, places), trial_(trial) {
    AddChanges();
    Tried nothing;
    nothing.fates.resize(memory_.movables().size());
    nothing.waited.resize(memory_.movables().size());
    Run(nothing, memory_.ProfileOf(nothing.fates, memory_.NeedsOf(nothing.fates)));
    enough_ =
        Duration::Picoseconds(nothing.time.picoseconds() + nothing.time.picoseconds() / kEnough);
  }

  // Returns the best plan in the budget, beginning with the one of a smaller budget, if there is
  // one.
  Tried Climb(Tried below, Bytes budget, size_t round, int64_t trials) {
    Tried best = std::move(below);
    std::vector<Tried> guesses = Guesses(best, round);
    InParallel(guesses.size(), [&](size_t i) { Fit(guesses[i], budget, kNoMovable); });
    // Guesses that agree are tried once.
    std::ranges::stable_sort(guesses, {}, &Tried::fates);
    guesses.erase(std::ranges::unique(guesses, {}, &Tried::fates).begin(), guesses.end());
    std::vector<Change> better;  // they made the plan faster alone
    size_t in_vain = 0;
    while (!guesses.empty() || (trials > 0 && in_vain < changes_.size() && best.time > enough_)) {
      std::vector<Tried> batch;
      std::vector<Change> made;
      const size_t room = kBatch - std::min(kBatch, guesses.size());
      const auto size = std::min(room, static_cast<size_t>(std::max<int64_t>(trials, 0)));
      if (best.fates.empty()) in_vain = changes_.size();  // there is no plan to change
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
      std::ranges::move(guesses, std::back_inserter(batch));
      guesses.clear();
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
  struct Change {
    size_t storage = 0;
    StepFate fate{};
  };

  // Returns plans to begin with: guesses, and the best plan, of whose storages now more may stay.
  std::vector<Tried> Guesses(const Tried& best, size_t round) const {
    const bool first = best.time == Duration::Max();
    std::vector<Tried> guesses;
    for (size_t i = 0; i < kGuesses; ++i) {
      const size_t turn = (i + kGuesses - round * kNew % kGuesses) % kGuesses;
      if (!first && i != best.guess && turn >= kNew) continue;
      Tried& guess = guesses.emplace_back();
      guess.fates.resize(memory_.movables().size());
      guess.guess = i;
      guess.missed = best.missed;
      guess.waited.resize(memory_.movables().size());
    }
    if (!first) guesses.push_back(best);
    return guesses;
  }

  void Fit(Tried& tried, Bytes budget, size_t locked) const {
    const CopyPrice& price = kPrices[tried.guess / kReliedOn.size()];
    const GuessPrices prices{price.copy, price.link, kReliedOn[tried.guess % kReliedOn.size()]};
    FitFates(memory_, prices, budget.count(), locked, tried);
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
      const size_t locked = i < changes.size() ? changes[i].storage : kNoMovable;
      Tried found;
      for (int again = 0; again <= kAgain; ++again) {
        const StepPlan last = std::move(tried.plan);
        Fit(tried, budget, locked);
        StepProfile guess;
        tried.plan = SchedulePlan(memory_, tried, budget.count(), guess);
        if (tried.plan == last && tried.time != Duration::Max()) break;
        const bool waits = Run(tried, guess);
        ++trials[i];
        if (Rank(tried, budget) < Rank(found, budget)) found = tried;
        if (tried.peak > budget) continue;
        if (locked != kNoMovable || !waits) break;
        for (size_t k = 0; k < memory_.movables().size(); ++k) {
          if (tried.waited[k] > 0 && tried.fates[k] == StepFate::kOffload) {
            tried.fates[k] = StepFate::kKeep;
          }
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
  bool Run(Tried& tried, const StepProfile& guess) const {
    const size_t ops = memory_.trace().ops.size();
    StepExecutor executor(tried.plan, memory_.places(), ops);
    const Report report = trial_(executor, Bytes::Unlimited(), {.iterations = 1});
    tried.peak = report.metrics.peak_allocated;
    tried.time = report.metrics.iteration;
    const std::vector<Bytes> used = UsedBytes(report);
    tried.missed.resize(guess.size());
    for (size_t op = 0; op < ops; ++op) {
      const int64_t took = op < used.size() ? used[op].count() : 0;
      const size_t first = memory_.FirstOf(op), last = memory_.LastOf(op);
      tried.missed[first] = tried.missed[last] = took - std::max(guess[first], guess[last]);
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
        const auto i = memory_.IndexOf(copy->tensor);
        if (!i || copy->interval.end <= begin || copy->interval.end > end) continue;
        const Duration time = copy->interval.end - std::max(copy->interval.start, begin);
        waited[*i] += static_cast<double>(time.picoseconds()) * 1e-12;
        any = true;
      }
    }
    return any;
  }

  // Adds all changes of one storage, of the largest storages first.
  void AddChanges() {
    const auto& movables = memory_.movables();
    std::vector<size_t> order(movables.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return movables[i].size; });
    for (const size_t i : order) {
      if (movables[i].offload || movables[i].evict) changes_.push_back({i, StepFate::kKeep});
      if (movables[i].offload) changes_.push_back({i, StepFate::kOffload});
      if (movables[i].evict) changes_.push_back({i, StepFate::kEvict});
    }
  }

  const StepMemory memory_;
  const TrialRun& trial_;
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

}  // namespace spillway::policies
