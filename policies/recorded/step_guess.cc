#include "policies/recorded/step_guess.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace spillway::policies {
namespace {

// What a guess takes a copy for when the link is full.
constexpr double kFullLink = 16;
// Storages that are offloaded stay first if copies take more than this part of the step, and
// otherwise those whose recomputation takes more than this part of their copy.
constexpr double kBusyLink = 0.4;
constexpr double kBesideCopy = 0.03;
constexpr double kNever = std::numeric_limits<double>::infinity();

double Seconds(Duration time) { return static_cast<double>(time.picoseconds()) * 1e-12; }

size_t FirstTaken(const StepMemory::Movable& movable) {
  return Index(movable.times->reads.front().taken);
}

class Fitting {
 public:
  Fitting(const StepMemory& memory, const GuessPrices& prices, int64_t budget, size_t locked,
          StepDraft& draft)
      : memory_(memory),
        movables_(memory.movables()),
        prices_(prices),
        budget_(budget),
        locked_(locked),
        draft_(draft),
        fates_(draft.fates),
        relied_on_(movables_.size()),
        seconds_(movables_.size()),
        readers_(movables_.size()),
        link_(prices.link * Seconds(memory.step())) {
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] == StepFate::kEvict) Rely(i, 1);
      if (fates_[i] == StepFate::kOffload) link_ -= Seconds(movables_[i].copy);
    }
  }

  // Changes fates until the guess fits, or nothing can be changed.
  void Shrink() {
    profile_ = Guess();
    for (bool is_exact = true;;) {
      const auto most = std::ranges::max_element(profile_);
      if (*most <= budget_) {
        if (is_exact) return;
        profile_ = Guess();
        is_exact = true;
        continue;
      }
      const auto moment = static_cast<size_t>(most - profile_.begin());
      const auto cheapest = CheapestToLeave(memory_.OpOf(moment));
      if (const auto offloaded = RecomputedToOffload(moment, cheapest.cost)) {
        Change(*offloaded, StepFate::kOffload);
        profile_ = Guess();
        is_exact = true;
      } else if (cheapest.cost < kNever) {
        Change(cheapest.storage, cheapest.fate);
        is_exact = false;
      } else {
        return;
      }
    }
  }

  // Keeps what there is room for, first what costs the most per byte.
  void Fill() {
    const double step = Seconds(memory_.step());
    const bool full = prices_.link * step - link_ > kBusyLink * step;
    std::vector<std::pair<double, size_t>> moved;
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] == StepFate::kKeep || i == locked_) continue;
      moved.emplace_back(-CostOf(i, fates_[i], full ? kFullLink : kBesideCopy) /
                             static_cast<double>(movables_[i].size),
                         i);
    }
    std::ranges::sort(moved);
    for (const auto& [cost, i] : moved) {
      const size_t begin = memory_.FirstOf(memory_.LeavesAt(i, fates_[i]));
      const size_t end = memory_.FirstOf(FirstTaken(movables_[i]));
      const auto room = std::ranges::subrange(profile_.begin() + static_cast<ptrdiff_t>(begin),
                                              profile_.begin() + static_cast<ptrdiff_t>(end));
      if (std::ranges::all_of(room, [&](int64_t b) { return b + movables_[i].size <= budget_; })) {
        Change(i, StepFate::kKeep);
      }
    }
  }

 private:
  struct Leaving {
    size_t storage = 0;
    StepFate fate{};
    double cost = kNever;  // per byte
  };

  // Returns the bytes that the fates and the last trial say.
  StepProfile Guess() const {
    StepProfile profile = memory_.ProfileOf(fates_, memory_.NeedsOf(fates_));
    const std::vector<int64_t> recomputed = memory_.RecomputedBefore(fates_);
    for (size_t op = 0; op < recomputed.size(); ++op) {
      if (recomputed[op] > 0) profile[memory_.FirstOf(op)] += recomputed[op];
    }
    for (size_t i = 0; i < draft_.missed.size(); ++i) profile[i] += draft_.missed[i];
    return profile;
  }

  // Counts for the sources of a storage that it is recomputed from them, or no more.
  void Rely(size_t i, int64_t change) {
    memory_.FindChain(i, FirstTaken(movables_[i]), fates_, chain_);
    for (const size_t source : chain_.sources) relied_on_[source] += change;
  }

  void Change(size_t i, StepFate fate) {
    const StepFate from = fates_[i];
    if (from == StepFate::kOffload) link_ += Seconds(movables_[i].copy);
    if (fate == StepFate::kOffload) link_ -= Seconds(movables_[i].copy);
    for (const auto& [f, sign] : {std::pair(from, 1), std::pair(fate, -1)}) {
      if (f == StepFate::kKeep) continue;
      memory_.Add(profile_, memory_.LeavesAt(i, f), FirstTaken(movables_[i]),
                  sign * movables_[i].size);
    }
    if (from == StepFate::kEvict || fate == StepFate::kEvict) {
      for (const size_t reader : readers_[i]) seconds_[reader].reset();
      readers_[i].clear();
    }
    if (from == StepFate::kEvict) Rely(i, -1);
    fates_[i] = fate;
    if (fate == StepFate::kEvict) Rely(i, 1);
  }

  // Returns the seconds in which a storage is recomputed for its first read.
  double Recompute(size_t i) {
    if (seconds_[i]) return *seconds_[i];
    memory_.FindChain(i, FirstTaken(movables_[i]), fates_, chain_);
    for (const size_t source : chain_.sources) readers_[source].push_back(i);
    seconds_[i] = chain_.seconds;
    return chain_.seconds;
  }

  // Returns what it costs that a storage has a fate, in seconds, as far as is known.
  double CostOf(size_t i, StepFate fate, double copy_share) {
    const StepMemory::Movable& movable = movables_[i];
    if (fate == StepFate::kKeep) return 0;
    if (fate == StepFate::kOffload) {
      return movable.offload ? copy_share * Seconds(movable.copy) + draft_.waited[i] : kNever;
    }
    if (!movable.evict) return kNever;
    return (Recompute(i) + Seconds(memory_.trace().hooks->evict.value_or(Duration()))) *
           (1 + prices_.relied_on * static_cast<double>(relied_on_[i]));
  }
  double CopyShare() const { return link_ > 0 ? prices_.copy : kFullLink; }

  // Returns the cheapest way in which a storage that is kept is not there at an op.
  Leaving CheapestToLeave(size_t at) {
    Leaving cheapest;
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != StepFate::kKeep || i == locked_ || at >= FirstTaken(movables_[i])) continue;
      for (const StepFate fate : {StepFate::kOffload, StepFate::kEvict}) {
        if (fate == StepFate::kOffload ? !movables_[i].offload : !movables_[i].evict) continue;
        if (at < memory_.LeavesAt(i, fate)) continue;
        const double cost = CostOf(i, fate, CopyShare()) / static_cast<double>(movables_[i].size);
        if (cost < cheapest.cost) cheapest = {i, fate, cost};
      }
    }
    return cheapest;
  }

  // Returns a storage whose recomputation before an op takes too much, with what it is recomputed
  // from, if offloading it costs less than `least` per byte.
  std::optional<size_t> RecomputedToOffload(size_t moment, double least) {
    const size_t at = memory_.OpOf(moment);
    std::vector<std::pair<double, size_t>> recomputed;  // by their cost for what they may save here
    for (const size_t i : RecomputedAt(at)) {
      double sources = 0;
      memory_.FindChain(i, at, fates_, chain_);
      for (const size_t source : chain_.sources) {
        if (fates_[source] != StepFate::kKeep) {
          sources += static_cast<double>(movables_[source].size);
        }
      }
      const double cost =
          CostOf(i, StepFate::kOffload, CopyShare()) - CostOf(i, StepFate::kEvict, CopyShare());
      if (sources > 0 && cost / sources < least) recomputed.emplace_back(cost / sources, i);
    }
    std::ranges::sort(recomputed);
    for (const auto& [cost, i] : recomputed) {
      fates_[i] = StepFate::kOffload;
      const bool helps = Guess()[moment] < profile_[moment];
      fates_[i] = StepFate::kEvict;
      if (helps) return i;
    }
    return std::nullopt;
  }

  // Returns the storages that are recomputed before the op, for a read or for another
  // recomputation, and that could be offloaded.
  std::vector<size_t> RecomputedAt(size_t at) {
    std::vector<size_t> recomputed;
    const auto consider = [&](size_t i) {
      const bool may = fates_[i] == StepFate::kEvict && movables_[i].offload && i != locked_;
      if (may) recomputed.push_back(i);
    };
    for (const StepMemory::Taken& taken : memory_.TakenBefore(at)) {
      if (fates_[taken.movable] != StepFate::kEvict) continue;
      consider(taken.movable);
      memory_.FindChain(taken.movable, at, fates_, chain_);
      std::ranges::for_each(chain_.sources, consider);
    }
    std::ranges::sort(recomputed);
    recomputed.erase(std::ranges::unique(recomputed).begin(), recomputed.end());
    return recomputed;
  }

  const StepMemory& memory_;
  const std::vector<StepMemory::Movable>& movables_;
  const GuessPrices& prices_;
  const int64_t budget_;
  const size_t locked_;
  const StepDraft& draft_;
  StepFates& fates_;
  std::vector<int64_t> relied_on_;  // by movable: of how many recomputations it is a part
  std::vector<std::optional<double>> seconds_;  // by movable: of `Recompute`, if they are known
  std::vector<std::vector<size_t>> readers_;    // by movable: whose `seconds_` depend on its fate
  StepMemory::Chain chain_;                     // the last one
  double link_;  // seconds of copies to the host until the link is full
  StepProfile profile_;
};

}  // namespace

void FitFates(const StepMemory& memory, const GuessPrices& prices, int64_t budget, size_t locked,
              StepDraft& draft) {
  Fitting fitting(memory, prices, budget, locked, draft);
  fitting.Shrink();
  fitting.Fill();
}

}  // namespace spillway::policies
