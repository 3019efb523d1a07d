#include "policies/recorded/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::policies {
namespace {

constexpr std::string_view kFormat = "spillway-step-plan";
constexpr int64_t kVersion = 1;

std::string_view Name(StepFate fate) { return fate == StepFate::kOffload ? "offload" : "evict"; }

double Seconds(Duration time) { return static_cast<double>(time.picoseconds()) * 1e-12; }

}  // namespace

StepPlaces::StepPlaces(const Trace& trace, const Liveness& liveness) : trace_(trace) {
  int64_t position = -1;
  for (const HookPlace& place : trace.hooks->places) {
    position += int64_t{place.packed} + place.unpacked;
    if (places_.empty() || places_.back() != place.at) {
      places_.push_back(place.at);
      positions_.push_back(position);
    }
    positions_.back() = position;
  }
  struct Found {
    uint32_t packed = 0;
    std::vector<uint32_t> taken;
  };
  std::map<TensorId, Found> found;
  for (const KeptForBackward& kept : trace.saved) {
    const TensorId id = liveness.Root(kept.tensor);
    Found& storage = found.try_emplace(id, Found{kept.packed, {}}).first->second;
    for (const uint32_t at : kept.unpacked) {
      if (at < trace.ops.size()) storage.taken.push_back(at);
    }
  }
  for (auto& [id, times] : found) {
    std::ranges::sort(times.taken);
    times.taken.erase(std::ranges::unique(times.taken).begin(), times.taken.end());
    const auto uses = liveness.Uses(id);
    if (times.taken.empty() || uses.empty() || times.packed == 0) continue;
    if (Index(uses.front()) >= std::min(times.packed, times.taken.front())) continue;
    const auto last_before = [&](size_t op) {
      return *std::prev(std::ranges::lower_bound(uses, static_cast<OpId>(op)));
    };
    Times& storage = storages_.emplace_back();
    storage.storage = id;
    storage.packed = static_cast<OpId>(times.packed);
    storage.left = last_before(times.taken.front());
    for (size_t i = 0; i < times.taken.size(); ++i) {
      const auto taken = static_cast<OpId>(times.taken[i]);
      const size_t end = i + 1 < times.taken.size() ? times.taken[i + 1] : trace.ops.size();
      storage.reads.push_back({taken, std::max(taken, last_before(end))});
    }
  }
  std::ranges::stable_sort(storages_, {}, &Times::packed);
  for (size_t i = 0; trace.hooks->state && i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const auto uses = liveness.Uses(id);
    const auto updates = [&](OpId op) { return trace.op(op).phase == Phase::kUpdate; };
    if (trace.tensor(id).kind == TensorKind::kOptimizerState && trace.tensor(id).movable &&
        liveness.Root(id) == id && !uses.empty() && std::ranges::all_of(uses, updates)) {
      state_.push_back(id);
    }
  }
  std::ranges::stable_sort(state_, {}, [&](TensorId id) { return liveness.Uses(id).front(); });
}

std::optional<size_t> StepPlaces::LastBefore(size_t op) const {
  const auto next = std::ranges::upper_bound(places_, op);
  return next == places_.begin() ? std::nullopt : std::optional(*std::prev(next));
}

std::optional<size_t> StepPlaces::FirstFrom(size_t op) const {
  const auto found = std::ranges::lower_bound(places_, op);
  return found == places_.end() ? std::nullopt : std::optional(*found);
}

int64_t StepPlaces::PositionAt(size_t place) const {
  return positions_[static_cast<size_t>(std::ranges::lower_bound(places_, place) -
                                        places_.begin())];
}

std::optional<size_t> StepPlaces::OpBehind(int64_t position) const {
  const auto found = std::ranges::lower_bound(positions_, position);
  if (position < 0 || found == positions_.end()) return std::nullopt;
  return places_[static_cast<size_t>(found - positions_.begin())];
}

std::vector<Bytes> UsedBytes(const Report& report) {
  std::vector<Bytes> used;
  Bytes now;
  for (const Placement& placement : report.placements) {
    if (!placement.on_device() || placement.kind > PlacementKind::kFree) continue;
    const size_t op = Index(placement.op);
    while (used.size() <= op) used.push_back(now);
    const bool taken = placement.kind == PlacementKind::kAllocate;
    now += taken ? placement.block.size : Bytes(0) - placement.block.size;
    used[op] = std::max(used[op], now);
  }
  return used;
}

StepPlan PlanFrom(const Report& report, const StepPlaces& places, Bytes memory) {
  // The verbs on each storage, each with the op before which it was called.
  struct Called {
    Verb verb;
    size_t before;
  };
  std::map<TensorId, std::vector<Called>> called;
  std::optional<OpId> ran;  // the op of the trace that was issued last
  for (const Decision& decision : report.decisions) {
    if (decision.verb == Verb::kRun) ran = decision.op;
    if (!decision.done || decision.tensor == kNoTensor) continue;
    const bool after = ran == decision.op;
    called[decision.tensor].push_back({decision.verb, Index(decision.op) + (after ? 1 : 0)});
  }
  std::vector<Bytes> used = UsedBytes(report);
  // Returns the place at which a copy back starts that the run has started before an op: the last
  // one before it if there is room from then on, or else the first one behind it.
  const auto place_of = [&](size_t before, Bytes size) {
    const auto last = places.LastBefore(before);
    if (!last) return places.FirstFrom(before);
    const auto until = used.begin() + static_cast<ptrdiff_t>(std::min(before, used.size()));
    const auto since = used.begin() + static_cast<ptrdiff_t>(std::min(*last, used.size()));
    const auto has_room = [&](Bytes bytes) { return bytes + size <= memory; };
    if (!std::all_of(since, until, has_room)) return places.FirstFrom(before);
    std::for_each(since, until, [&](Bytes& bytes) { bytes += size; });
    return last;
  };
  StepPlan plan;
  for (const StepPlaces::Times& times : places.storages()) {
    const auto found = called.find(times.storage);
    if (found == called.end()) continue;
    StepPlan::Storage storage{times.storage};
    auto& releases = storage.At(StepMove::kRelease);
    auto& prefetches = storage.At(StepMove::kPrefetch);
    auto& drops = storage.At(StepMove::kDrop);
    // The verb by which the storage leaves first decides how it comes back, always.
    const auto leaves = [](const Called& call) {
      return call.verb == Verb::kRelease || call.verb == Verb::kEvict;
    };
    const auto first = std::ranges::find_if(found->second, leaves);
    if (first == found->second.end()) continue;
    const bool offloads = first->verb == Verb::kRelease;
    const size_t released = first->before;
    storage.fate = offloads ? StepFate::kOffload : StepFate::kEvict;
    const size_t taken = Index(times.reads.front().taken);
    if (offloads) {
      const auto free = places.FirstFrom(Index(times.left) + 1);
      const auto wanted = places.LastBefore(released);
      if (free && wanted && std::max(*free, *wanted) < taken) {
        releases = {std::max(*free, *wanted)};
      }
    }
    for (const Called& call : found->second) {
      if (call.verb != Verb::kPrefetch || !offloads) continue;
      const auto place = place_of(call.before, places.SizeOf(times.storage));
      if (place && (prefetches.empty() || *place > prefetches.back())) {
        prefetches.push_back(*place);
      }
    }
    bool absent = false;  // it has left once
    for (const Called& call : found->second) {
      if (!leaves(call)) continue;
      if (!std::exchange(absent, true) && call.before <= taken) continue;
      const auto next = std::ranges::find_if(times.reads, [&](const StepPlaces::Read& read) {
        return call.before <= Index(read.taken);
      });
      if (next == times.reads.end()) continue;  // its last use ends it
      const auto place = next == times.reads.begin() ? places.LastBefore(call.before)
                                                     : std::optional(Index(std::prev(next)->taken));
      if (place && (drops.empty() || drops.back() < *place)) drops.push_back(*place);
    }
    if (offloads && releases.empty() && drops.empty()) continue;
    // A tensor recomputed from the storage would hold it in the program beyond its last read.
    const size_t last = Index(times.reads.back().taken);
    if (drops.empty() || drops.back() < last) drops.push_back(last);
    plan.storages.push_back(std::move(storage));
  }
  return plan;
}

std::string FormatStepPlan(const StepPlan& plan, const Trace& trace, const StepPlaces& places,
                           Bytes memory, std::string_view policy,
                           const StepPrediction& prediction) {
  JsonWriter json(1);
  json.BeginObject().Put("format", kFormat).Put("version", kVersion).Put("workload", trace.name);
  json.Put("memory_bytes", memory).Put("policy", policy);
  json.Put("peak_bytes", prediction.peak).Put("eager_peak_bytes", prediction.eager_peak);
  json.Put("step_s", Seconds(prediction.step)).Put("eager_step_s", Seconds(prediction.eager_step));
  json.Put("host_s", Seconds(prediction.host));
  json.Put("forward_host_s", Seconds(prediction.forward));
  if (!plan.state.empty()) {
    json.Key("state").BeginArray();
    for (const TensorId id : plan.state) json.Put(trace.tensor(id).name);
    json.EndArray();
  }
  json.Key("storages").BeginArray();
  for (const StepPlan::Storage& storage : plan.storages) {
    json.BeginObject().Put("tensor", trace.tensor(storage.storage).name);
    json.Put("fate", Name(storage.fate));
    for (size_t i = 0; i < kStepMoves.size(); ++i) {
      const auto& [key, list, offloaded, may_lack] = kStepMoves[i];
      if (offloaded && storage.fate != StepFate::kOffload) continue;
      if (may_lack && storage.moves[i].empty()) continue;
      json.Key(key);
      if (list) json.BeginArray();
      for (const size_t at : storage.moves[i]) {
        json.Put(places.PositionAt(places.LastBefore(at).value_or(0)));
      }
      if (list) json.EndArray();
    }
    json.EndObject();
  }
  return json.EndArray().EndObject().Take();
}

StepPlan ParseStepPlan(std::string_view text, const std::string& origin, const Trace& trace,
                       const StepPlaces& places) {
  JsonDocument document(text, origin);
  using Value = JsonDocument::Value;
  document.ReadHeader(kFormat, kVersion, kVersion);
  std::map<std::string_view, const StepPlaces::Times*> known;
  for (const StepPlaces::Times& times : places.storages()) {
    known.emplace(trace.tensor(times.storage).name, &times);
  }
  const auto op_at = [&](Value value) {
    const int64_t position = document.ReadInteger(value, 0, int64_t{1} << 32);
    if (const auto op = places.OpBehind(position)) return *op;
    document.Fail(fmt::format("the step has no position {}", position));
  };
  StepPlan plan;
  const auto read_ops = [&](Value value, const StepMoveKey& move, std::vector<size_t>& ops) {
    const auto add = [&](Value at) { ops.push_back(op_at(at)); };
    move.list ? document.ReadArray(value, add) : add(value);
  };
  const auto read_storage = [&](Value value) {
    StepPlan::Storage storage;
    const StepPlaces::Times* times = nullptr;
    const auto read_tensor = [&](Value v) {
      const std::string_view name = document.ReadString(v);
      const auto found = known.find(name);
      if (found == known.end()) {
        document.Fail(fmt::format("'{}' is no storage that autograd saves and that backward reads",
                                  JsonExcerpt(name)));
      }
      times = found->second;
      known.erase(found);
    };
    const auto read_fate = [&](Value v) {
      const std::string_view name = document.ReadString(v);
      for (const auto fate : {StepFate::kOffload, StepFate::kEvict}) {
        if (Name(fate) != name) continue;
        storage.fate = fate;
        return;
      }
      document.Fail("expected \"offload\" or \"evict\"");
    };
    [&]<size_t... i>(std::index_sequence<i...>) {
      document.ReadObject(
          value, Required("tensor", read_tensor), Required("fate", read_fate),
          JsonField{kStepMoves[i].key, !kStepMoves[i].offloaded && !kStepMoves[i].may_lack,
                    [&](Value v) { read_ops(v, kStepMoves[i], storage.moves[i]); }}...);
    }
    (std::make_index_sequence<kStepMoves.size()>());
    for (size_t i = 0; i < kStepMoves.size() && storage.fate != StepFate::kOffload; ++i) {
      if (!kStepMoves[i].offloaded || storage.moves[i].empty()) continue;
      document.Fail(fmt::format("only a storage that is offloaded has \"{}\"", kStepMoves[i].key));
    }
    storage.storage = times->storage;
    plan.storages.push_back(std::move(storage));
  };
  const auto read_state = [&](Value value) {
    const std::string_view name = document.ReadString(value);
    const auto named = [&](TensorId id) { return trace.tensor(id).name == name; };
    const auto found = std::ranges::find_if(places.state(), named);
    if (found == places.state().end() || std::ranges::count(plan.state, *found) > 0) {
      document.Fail(
          fmt::format("'{}' is no optimizer state that can be on the host, or stands twice",
                      JsonExcerpt(name)));
    }
    plan.state.push_back(*found);
  };
  document.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                    Required("workload",
                             [&](Value v) {
                               const std::string_view name = document.ReadString(v);
                               if (name == trace.name) return;
                               document.Fail(fmt::format("the plan is for '{}', and this is '{}'",
                                                         JsonExcerpt(name), trace.name));
                             }),
                    Required("memory_bytes", SkipJson), Required("policy", SkipJson),
                    Required("peak_bytes", SkipJson), Required("eager_peak_bytes", SkipJson),
                    Required("step_s", SkipJson), Required("eager_step_s", SkipJson),
                    Required("host_s", SkipJson), Required("forward_host_s", SkipJson),
                    Optional("state", [&](Value v) { document.ReadArray(v, read_state); }),
                    Required("storages", [&](Value v) { document.ReadArray(v, read_storage); }));
  const auto packed = [&](const StepPlan::Storage& storage) {
    return std::ranges::find(places.storages(), storage.storage, &StepPlaces::Times::storage);
  };
  std::ranges::stable_sort(plan.storages, {}, packed);
  return plan;
}

}  // namespace spillway::policies
