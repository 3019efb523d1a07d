#include "policies/recorded/step_schedule.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace spillway::policies {
namespace {

// A prefetch is planned to end this long before it has to.
constexpr Duration kSlack = Duration::Microseconds(500);

// Makes the plan of given fates.
class Scheduling {
 public:
  Scheduling(const StepMemory& memory, const StepDraft& draft, int64_t budget)
      : memory_(memory),
        movables_(memory.movables()),
        draft_(draft),
        fates_(draft.fates),
        budget_(budget),
        profile_(memory.ProfileOf(fates_, memory.NeedsOf(fates_))),
        recomputed_(memory.RecomputedBefore(fates_)),
        needs_(fates_.size()),
        stays_(fates_.size()),
        until_(fates_.size()),
        leave_(fates_.size()),
        prefetches_(fates_.size()) {
    for (size_t op = 0; op < recomputed_.size(); ++op) {
      if (recomputed_[op] > 0) profile_[memory.FirstOf(op)] += recomputed_[op];
    }
  }

  StepPlan Run() {
    Recompute();
    StayBetweenNeeds();
    Leave();
    Return();
    return Plan();
  }

  const StepProfile& profile() const { return profile_; }

 private:
  // The ops [begin, end) before a need of a storage, in which it need not be there.
  struct Stretch {
    size_t begin, end, storage, next;  // `next` is the need at its end
  };

  bool HasRoom(size_t from, size_t to, int64_t size) const {
    for (size_t moment = from; moment < to; ++moment) {
      const int64_t missed =
          draft_.missed.empty() ? 0 : std::max<int64_t>(0, draft_.missed[moment]);
      if (profile_[moment] + missed + size > budget_) return false;
    }
    return true;
  }
  bool HasRoomAt(size_t op, int64_t size) const {
    return HasRoom(memory_.FirstOf(op), memory_.FirstOf(op + 1), size);
  }

  // Follows what is recomputed, in the order of ops. What has been made, also on the way to another
  // storage, stays until backward takes it if there is room, what is taken first before the rest.
  void Recompute() {
    for (size_t op = 0; op < recomputed_.size(); ++op) {
      std::vector<StepMemory::Chain> chains;
      std::vector<std::pair<size_t, size_t>> made;  // the read that is next, and the movable
      for (const auto& [i, read] : memory_.TakenBefore(op)) {
        if (fates_[i] == StepFate::kKeep) continue;
        const StepPlaces::Times& times = *movables_[i].times;
        const bool offload = fates_[i] == StepFate::kOffload;
        const bool stayed = !offload && until_[i] >= op;
        AddNeed(i, {op, Index(times.reads[read].last), false}, stayed);
        if (offload) continue;
        if (!stayed) {
          memory_.FindChain(i, op, fates_, chains.emplace_back(), &until_);
          AddOnTheWay(op, chains.back(), made);
        }
        until_[i] = Index(times.reads[read].last);
        if (read + 1 < times.reads.size()) made.emplace_back(Index(times.reads[read + 1].taken), i);
      }
      if (made.empty()) continue;
      std::ranges::sort(made);
      made.erase(std::ranges::unique(made).begin(), made.end());
      Keep(op, made, chains);
    }
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != StepFate::kOffload) continue;
      StepMemory::Merge(needs_[i]);
      stays_[i].assign(needs_[i].size(), false);
    }
  }

  // Notes what a chain before an op reads that is offloaded, and what it makes on the way.
  void AddOnTheWay(size_t op, const StepMemory::Chain& chain,
                   std::vector<std::pair<size_t, size_t>>& made) {
    const auto next_read = [&](size_t i) {
      const auto& reads = movables_[i].times->reads;
      return std::ranges::find_if(reads, [&](auto& read) { return Index(read.taken) >= op; });
    };
    for (const size_t source : chain.sources) {
      const bool ended = op > Index(movables_[source].times->reads.back().last);
      if (fates_[source] == StepFate::kOffload && !ended) needs_[source].push_back({op, op, true});
    }
    for (const TensorId id : chain.made) {
      const auto i = memory_.IndexOf(id);
      if (!i || id == chain.made.front() || fates_[*i] != StepFate::kEvict) continue;
      const auto next = next_read(*i);
      if (next == movables_[*i].times->reads.end()) continue;
      AddNeed(*i, {op, op, true}, false);
      if (Index(next->taken) > op) made.emplace_back(Index(next->taken), *i);
    }
  }

  void AddNeed(size_t i, const StepMemory::Need& need, bool stayed) {
    auto& needs = needs_[i];
    if (!needs.empty() && need.from <= needs.back().to) {
      needs.back().to = std::max(needs.back().to, need.to);
      needs.back().on_the_way &= need.on_the_way;
      return;
    }
    needs.push_back(need);
    stays_[i].push_back(stayed);
  }

  // Decides which of the storages that are made before an op, or read by it, stay until they are
  // taken next.
  void Keep(size_t op, const std::vector<std::pair<size_t, size_t>>& made,
            std::vector<StepMemory::Chain>& chains) {
    std::vector<TensorId> stay;
    const auto bytes_before = [&] {
      int64_t most = 0, before = 0;
      for (StepMemory::Chain& chain : chains) {
        most = std::max(most, before + memory_.BytesOf(chain, stay));
        before += memory_.trace().tensor(chain.made.front()).size.count();
      }
      return most;
    };
    SetRecomputed(op, bytes_before());
    for (const auto& [taken, i] : made) {
      const TensorId id = movables_[i].times->storage;
      const int64_t size = movables_[i].size;
      std::vector<size_t> there{i};
      for (const StepMemory::Taken& other : memory_.TakenBefore(taken)) {
        if (until_[other.movable] >= taken) there.push_back(other.movable);
      }
      const int64_t later = memory_.RecomputedBefore(taken, fates_, there, chain_);
      const bool is_target = until_[i] >= op;
      const size_t from = is_target ? memory_.FirstOf(until_[i] + 1) : memory_.LastOf(op);
      const size_t to = memory_.FirstOf(taken);
      if (!HasRoom(from, to, size) || !HasRoom(to, to + 1, size + later - recomputed_[taken])) {
        continue;
      }
      if (!is_target) {
        stay.push_back(id);
        const int64_t now = bytes_before();
        if (!HasRoom(memory_.FirstOf(op), memory_.FirstOf(op) + 1, now - recomputed_[op])) {
          stay.pop_back();
          continue;
        }
        SetRecomputed(op, now);
      }
      SetRecomputed(taken, later);
      for (size_t moment = from; moment < memory_.LastOf(taken); ++moment) profile_[moment] += size;
      until_[i] = taken;
    }
  }

  void SetRecomputed(size_t op, int64_t bytes) {
    profile_[memory_.FirstOf(op)] += bytes - recomputed_[op];
    recomputed_[op] = bytes;
  }

  // Decides between which needs offloaded storages stay, in the shortest stretches first.
  void StayBetweenNeeds() {
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != StepFate::kOffload) continue;
      for (size_t next = 1; next < needs_[i].size(); ++next) {
        stretches.push_back({needs_[i][next - 1].to + 1, needs_[i][next].from, i, next});
      }
    }
    std::ranges::stable_sort(stretches, {}, [](const Stretch& s) { return s.end - s.begin; });
    for (const Stretch& stretch : stretches) {
      const int64_t size = movables_[stretch.storage].size;
      const StepMemory::Need& before = needs_[stretch.storage][stretch.next - 1];
      const size_t begin =
          before.on_the_way ? memory_.LastOf(before.to) : memory_.FirstOf(stretch.begin);
      const size_t end = memory_.FirstOf(stretch.end);
      if (HasRoom(begin, end, size)) {
        for (size_t moment = begin; moment < end; ++moment) profile_[moment] += size;
        stays_[stretch.storage][stretch.next] = true;
      } else {
        returns_.push_back(stretch);
      }
    }
  }

  // Decides when storages leave: when they have been copied, or else where room is needed, in the
  // order of their copies. A release waits for the copy, and copies run one after another.
  void Leave() {
    const size_t ops = memory_.trace().ops.size();
    std::vector<std::vector<size_t>> packed(ops), free(ops);  // by op
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != StepFate::kOffload) continue;
      packed[Index(movables_[i].times->packed)].push_back(i);
      free[memory_.LeavesAt(i, StepFate::kOffload)].push_back(i);
    }
    std::vector<Duration> copied(fates_.size());
    std::set<size_t> held;  // in the order of their copies
    int64_t bytes = 0;      // of these
    Duration last, waited;  // the end of the last copy, and what releases have waited
    for (size_t op = 0; op < ops; ++op) {
      const Duration now = memory_.StartOf(op) + waited;
      for (const size_t i : packed[op]) {
        last = std::max(last, now) + movables_[i].copy;
        copied[i] = last;
      }
      for (const size_t i : free[op]) {
        held.insert(i);
        bytes += movables_[i].size;
      }
      for (auto i = held.begin(); i != held.end();) {
        const bool needed = op + 1 >= needs_[*i].front().from;
        if (!needed && copied[*i] > now && HasRoomAt(op, bytes)) {
          ++i;
          continue;
        }
        waited = std::max(waited, copied[*i] - memory_.StartOf(op));
        leave_[*i] = std::max(*movables_[*i].free, *memory_.places().LastBefore(op));
        memory_.Add(profile_, leave_[*i], op, -movables_[*i].size);
        returns_.push_back({leave_[*i], needs_[*i].front().from, *i, 0});
        bytes -= movables_[*i].size;
        i = held.erase(i);
      }
      memory_.Add(profile_, op, op + 1, bytes);
    }
  }

  // Decides when copies back start.
  void Return() {
    std::ranges::stable_sort(returns_, {}, &Stretch::end);
    std::vector<Duration> latest(returns_.size());
    Duration next = Duration::Max();
    for (size_t k = returns_.size(); k-- > 0;) {
      next = std::min(next, memory_.StartOf(returns_[k].end) - kSlack) -
             movables_[returns_[k].storage].copy;
      latest[k] = next;
    }
    for (size_t k = 0; k < returns_.size(); ++k) {
      const Stretch& stretch = returns_[k];
      const int64_t size = movables_[stretch.storage].size;
      size_t op = stretch.end;
      while (op > stretch.begin && memory_.StartOf(op) > latest[k] && HasRoomAt(op - 1, size)) {
        --op;
        memory_.Add(profile_, op, op + 1, size);
      }
      // A copy starts where a hook is: before the op if there is room, and otherwise after it.
      size_t place = std::max(stretch.begin, memory_.places().LastBefore(op).value_or(0));
      if (memory_.places().LastBefore(place) == place &&
          HasRoom(memory_.FirstOf(place), memory_.FirstOf(op), size)) {
        memory_.Add(profile_, place, op, size);
      } else {
        place = std::min(memory_.places().FirstFrom(op).value_or(stretch.end), stretch.end);
        memory_.Add(profile_, op, place, -size);
      }
      prefetches_[stretch.storage].push_back(place);
    }
  }

  StepPlan Plan() {
    StepPlan plan;
    for (size_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] == StepFate::kKeep) continue;
      StepPlan::Storage& storage = plan.storages.emplace_back();
      storage.storage = movables_[i].times->storage;
      storage.fate = fates_[i];
      if (fates_[i] == StepFate::kOffload) storage.At(StepMove::kRelease) = {leave_[i]};
      storage.At(StepMove::kPrefetch) = std::move(prefetches_[i]);
      std::ranges::sort(storage.At(StepMove::kPrefetch));
      for (size_t k = 0; k < needs_[i].size(); ++k) {
        if (k + 1 < needs_[i].size() && stays_[i][k + 1]) continue;
        storage.At(StepMove::kDrop).push_back(DropOf(i, needs_[i][k]));
      }
    }
    return plan;
  }

  // Returns the op that names in a plan that the storage is given up after a need: of its own last
  // read in it, if there is one.
  size_t DropOf(size_t i, const StepMemory::Need& need) const {
    size_t drop = need.to;
    for (const StepPlaces::Read& read : movables_[i].times->reads) {
      if (Index(read.taken) >= need.from && Index(read.taken) <= need.to) drop = Index(read.taken);
    }
    return drop;
  }

  const StepMemory& memory_;
  const std::vector<StepMemory::Movable>& movables_;
  const StepDraft& draft_;
  const StepFates& fates_;
  const int64_t budget_;
  StepProfile profile_;
  std::vector<int64_t> recomputed_;  // by op: the bytes of `profile_` for what is recomputed
  StepMemory::Needs needs_;
  std::vector<std::vector<bool>>
      stays_;                     // by movable and need: it has stayed since the need before
  std::vector<size_t> until_;     // by movable: the last op at which it is there
  std::vector<Stretch> returns_;  // of offloaded storages that come back at their ends
  std::vector<size_t> leave_;     // by movable
  std::vector<std::vector<size_t>> prefetches_;
  StepMemory::Chain chain_;  // the last one of what is recomputed later
};

}  // namespace

StepPlan SchedulePlan(const StepMemory& memory, const StepDraft& draft, int64_t budget,
                      StepProfile& guess) {
  Scheduling scheduling(memory, draft, budget);
  StepPlan plan = scheduling.Run();
  guess = scheduling.profile();
  return plan;
}

}  // namespace spillway::policies
