#include "policies/recorded/step_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "traces/liveness.h"

namespace spillway::policies {
namespace {

constexpr size_t kLongestChain = 100;  // storages

constexpr double kNever = std::numeric_limits<double>::infinity();

double Seconds(Duration time) { return static_cast<double>(time.picoseconds()) * 1e-12; }

}  // namespace

StepMemory::StepMemory(const Trace& trace, const CostModel& cost, const StepPlaces& places)
    : trace_(trace), liveness_(trace), places_(places), index_(trace.tensors.size()) {
  starts_.push_back(Duration());
  for (const Op& op : trace.ops) starts_.push_back(starts_.back() + op.recorded->time);
  taken_.resize(trace.ops.size());
  for (size_t i = 0; i < places.storages().size(); ++i) {
    const auto& reads = places.storages()[i].reads;
    for (size_t k = 0; k < reads.size(); ++k) taken_[Index(reads[k].taken)].push_back({i, k});
  }
  AddMoments();
  fixed_.resize(ops_.size());
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    fixed_[LastOf(i)] += trace.ops[i].recorded->workspace.count();
  }
  for (const StepPlaces::Times& times : places.storages()) AddMovable(times, cost);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness_.Root(id) == id && !index_[i]) AddFixed(id);
  }
  AddLinks();
}

void StepMemory::AddMoments() {
  for (size_t op = 0; op < trace_.ops.size(); ++op) {
    first_.push_back(ops_.size());
    ops_.insert(ops_.end(), taken_[op].empty() ? 1 : 2, op);
  }
  first_.push_back(ops_.size());
}

void StepMemory::AddMovable(const StepPlaces::Times& times, const CostModel& cost) {
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
  }
  index_[Index(times.storage)] = movables_.size();
  movables_.push_back(movable);
}

void StepMemory::AddFixed(TensorId id) {
  const Tensor& tensor = trace_.tensor(id);
  const auto uses = liveness_.Uses(id);
  const bool stays =
      tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
  if (uses.empty() && !stays) return;
  const size_t begin = stays || tensor.kind == TensorKind::kInput ? 0 : LastOf(Index(uses.front()));
  const size_t end = stays ? fixed_.size() : FirstOf(Index(uses.back()) + 1);
  for (size_t moment = begin; moment < end; ++moment) fixed_[moment] += tensor.size.count();
}

void StepMemory::AddLinks() {
  for (const Op& op : trace_.ops) {
    const auto& recorded = *op.recorded;
    Link& link = links_.emplace_back();
    link.recomputable = op.recomputable;
    link.seconds = Seconds(recorded.again ? recorded.again->time : recorded.time);
    for (const TensorId input : op.inputs) {
      const TensorId id = liveness_.Root(input);
      const TensorKind kind = trace_.tensor(id).kind;
      if (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState) continue;
      link.inputs.push_back({id, index_[Index(id)], Index(*liveness_.LastUse(id))});
    }
  }
}

void StepMemory::Add(StepProfile& profile, size_t begin, size_t end, int64_t bytes) const {
  for (size_t moment = first_[begin]; moment < first_[end]; ++moment) profile[moment] += bytes;
}

size_t StepMemory::LeavesAt(size_t movable, StepFate fate) const {
  return fate == StepFate::kOffload ? *movables_[movable].free
                                    : Index(movables_[movable].times->left) + 1;
}

void StepMemory::FindChain(size_t movable, size_t at, const StepFates& fates, Chain& chain,
                           const std::vector<size_t>* until) const {
  chain.ops.clear();
  chain.sources.clear();
  chain.places.resize(trace_.tensors.size());
  for (const TensorId id : chain.made) chain.places[Index(id)] = 0;
  chain.made.clear();
  chain.seconds = 0;
  const auto make = [&](TensorId id) {
    chain.made.push_back(id);
    chain.places[Index(id)] = chain.made.size();
  };
  make(movables_[movable].times->storage);
  const auto is_there = [&](size_t i) {
    if (fates[i] != StepFate::kEvict) return true;
    if (until != nullptr) return (*until)[i] >= at;
    return std::ranges::any_of(movables_[i].times->reads, [&](const StepPlaces::Read& read) {
      return Index(read.taken) < at && at <= Index(read.last);
    });
  };
  for (size_t i = 0; i < chain.made.size(); ++i) {
    const auto writers = liveness_.Writers(chain.made[i]);
    if (writers.empty() || chain.made.size() > kLongestChain) chain.seconds = kNever;
    for (const OpId writer : writers) {
      if (Index(writer) >= at) break;
      const Link& link = links_[Index(writer)];
      if (!link.recomputable) chain.seconds = kNever;
      if (chain.seconds == kNever) return;
      chain.ops.push_back(writer);
      chain.seconds += link.seconds;
      for (const Link::Input& input : link.inputs) {
        if (chain.places[Index(input.storage)] > 0) continue;
        if (input.movable) chain.sources.push_back(*input.movable);
        const bool gone = input.movable && !is_there(*input.movable);
        if (gone || input.last < at) make(input.storage);
      }
    }
  }
}

int64_t StepMemory::BytesOf(Chain& chain, std::span<const TensorId> stays) const {
  std::ranges::sort(chain.ops);
  chain.ops.erase(std::ranges::unique(chain.ops).begin(), chain.ops.end());
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  // By storage that is made: the first op of the chain with it, and the last one that needs it.
  std::vector<std::pair<size_t, size_t>> there(chain.made.size(), {kNone, 0});
  for (size_t i = 0; i < chain.ops.size(); ++i) {
    for (const TensorId id : liveness_.Storages(chain.ops[i])) {
      const size_t place = chain.places[Index(id)];
      if (place == 0) continue;
      auto& [first, last] = there[place - 1];
      first = std::min(first, i);
      last = i;
    }
  }
  there.front().second = chain.ops.size() - 1;
  for (const TensorId id : stays) {
    const size_t place = chain.places[Index(id)];
    if (place > 0) there[place - 1].second = chain.ops.size() - 1;
  }
  std::vector<int64_t> bytes(chain.ops.size() + 1);  // their changes, by op of the chain
  for (size_t i = 0; i < there.size(); ++i) {
    const auto& [first, last] = there[i];
    if (first == kNone) continue;
    bytes[first] += trace_.tensor(chain.made[i]).size.count();
    bytes[last + 1] -= trace_.tensor(chain.made[i]).size.count();
  }
  int64_t most = 0, now = 0;
  for (size_t i = 0; i < chain.ops.size(); ++i) {
    now += bytes[i];
    const auto& recorded = *trace_.op(chain.ops[i]).recorded;
    const Bytes workspace = recorded.again ? recorded.again->workspace : recorded.workspace;
    most = std::max(most, now + workspace.count());
  }
  return most;
}

StepMemory::Needs StepMemory::NeedsOf(const StepFates& fates) const {
  Needs needs(movables_.size());
  Chain chain;
  for (size_t i = 0; i < movables_.size(); ++i) {
    for (const StepPlaces::Read& read : movables_[i].times->reads) {
      const size_t at = Index(read.taken);
      if (fates[i] != StepFate::kKeep) needs[i].push_back({at, Index(read.last), false});
      if (fates[i] != StepFate::kEvict) continue;
      FindChain(i, at, fates, chain);
      for (const size_t source : chain.sources) {
        const bool ended = at > Index(movables_[source].times->reads.back().last);
        if (fates[source] == StepFate::kOffload && !ended) needs[source].push_back({at, at, true});
      }
    }
  }
  for (auto& of : needs) Merge(of);
  return needs;
}

void StepMemory::Merge(std::vector<Need>& needs) {
  std::ranges::sort(needs, {}, [](const Need& need) { return std::pair(need.from, -need.to); });
  std::vector<Need> merged;
  for (const Need& need : needs) {
    if (merged.empty() || need.from > merged.back().to) {
      merged.push_back(need);
    } else {
      merged.back().to = std::max(merged.back().to, need.to);
      merged.back().on_the_way &= need.on_the_way;
    }
  }
  needs = std::move(merged);
}

StepProfile StepMemory::ProfileOf(const StepFates& fates, const Needs& needs) const {
  StepProfile profile(fixed_.size() + 1);  // changes at first
  const auto add = [&](size_t begin, size_t end, int64_t bytes) {
    profile[begin] += bytes;
    profile[end] -= bytes;
  };
  for (size_t i = 0; i < movables_.size(); ++i) {
    const Movable& movable = movables_[i];
    if (fates[i] == StepFate::kKeep) {
      const OpId last = liveness_.Uses(movable.times->storage).back();
      add(LastOf(movable.begin), FirstOf(Index(last) + 1), movable.size);
      continue;
    }
    add(LastOf(movable.begin), FirstOf(LeavesAt(i, fates[i])), movable.size);
    for (const Need& need : needs[i]) {
      add(fates[i] == StepFate::kEvict ? LastOf(need.from) : FirstOf(need.from),
          need.on_the_way ? LastOf(need.to) : FirstOf(need.to + 1), movable.size);
    }
  }
  profile.pop_back();
  std::partial_sum(profile.begin(), profile.end(), profile.begin());
  for (size_t moment = 0; moment < profile.size(); ++moment) profile[moment] += fixed_[moment];
  return profile;
}

int64_t StepMemory::RecomputedBefore(size_t op, const StepFates& fates,
                                     std::span<const size_t> there, Chain& chain) const {
  int64_t made = 0, most = 0;
  for (const Taken& taken : taken_[op]) {
    const size_t i = taken.movable;
    if (fates[i] != StepFate::kEvict || std::ranges::find(there, i) != there.end()) continue;
    FindChain(i, op, fates, chain);
    if (!chain.ops.empty()) most = std::max(most, made + BytesOf(chain));
    made += movables_[i].size;
  }
  return most;
}

std::vector<int64_t> StepMemory::RecomputedBefore(const StepFates& fates) const {
  std::vector<int64_t> bytes;
  Chain chain;
  for (size_t op = 0; op < taken_.size(); ++op) {
    bytes.push_back(RecomputedBefore(op, fates, {}, chain));
  }
  return bytes;
}

}  // namespace spillway::policies
