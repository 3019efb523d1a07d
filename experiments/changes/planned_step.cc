#include "experiments/changes/planned_step.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "experiments/changes/changed_op.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

constexpr Bytes kSmallest = Bytes::MiB(1);  // a smaller storage stays
// The host's times of a hook, of the start of a copy, and of giving a storage up.
constexpr Duration kHook = Duration::Microseconds(2), kMove = Duration::Microseconds(9);
constexpr Duration kFetch = Duration::Microseconds(60);  // and of a weight that comes and goes
constexpr double kBesideCopy =
    0.03;  // of the time of a copy: by so much, ops beside it take longer
constexpr int64_t kBesideOps =
    95;  // per cent of their bandwidth alone, that copies beside ops reach
constexpr Bytes kWindow = Bytes::MiB(256);  // so many bytes of weights come ahead
constexpr int64_t kWindows = 8;             // there is room for so many, if there are fewer bytes
constexpr uint8_t kLane = 1, kLaneOut = 2;  // on which weights come and go

template <typename Ids>
Bytes BytesOf(const Trace& trace, const Ids& ids) {
  Bytes sum;
  for (const TensorId id : ids) sum += trace.tensor(id).size;
  return sum;
}

Bytes WindowOf(Bytes outside) { return std::min(kWindow, Bytes(outside.count() / kWindows)); }

// Returns what ops of backward read of what forward made, as if autograd had saved it.
std::vector<KeptForBackward> ReadInBackward(const Trace& trace, const Liveness& liveness) {
  std::vector<KeptForBackward> saved;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness.Root(id) != id || trace.tensors[i].kind != TensorKind::kActivation) continue;
    const auto uses = liveness.Uses(id);
    if (uses.empty() || trace.op(uses.front()).phase != Phase::kForward) continue;
    KeptForBackward kept{id, static_cast<uint32_t>(Index(uses.front()) + 1)};
    for (const OpId use : uses) {
      if (trace.op(use).phase == Phase::kBackward) {
        kept.unpacked.push_back(static_cast<uint32_t>(Index(use)));
      }
    }
    if (!kept.unpacked.empty()) saved.push_back(std::move(kept));
  }
  std::ranges::stable_sort(saved, {}, &KeptForBackward::packed);
  return saved;
}

// Returns the places at which autograd saves and reads tensors.
std::vector<HookPlace> PlacesOf(const Trace& trace) {
  std::vector<std::pair<uint32_t, bool>> events;  // the position, and whether backward reads there
  for (const KeptForBackward& kept : trace.saved) {
    events.emplace_back(kept.packed, false);
    for (const uint32_t at : kept.unpacked) events.emplace_back(at, true);
  }
  std::ranges::sort(events);
  std::vector<HookPlace> places;
  for (const auto& [at, reads] : events) {
    if (places.empty() || places.back().at != at) places.push_back({at});
    ++(reads ? places.back().unpacked : places.back().packed);
  }
  return places;
}

// Returns an op that takes no time.
Op Marker(std::string name, const char* signature, const Op& near) {
  Op op = NewOp(std::move(name), signature, near, Duration());
  op.recorded->host = Duration();
  return op;
}

// Returns true for an op by which autocast copies a trained parameter.
bool IsCastOfParameter(const Trace& trace, const Liveness& liveness, const Op& op) {
  if (OperatorOf(op) != "aten::_to_copy" || op.inputs.size() != 1 || op.outputs.size() != 1) {
    return false;
  }
  const TensorId from = op.inputs[0], root = liveness.Root(from);
  const DataType to = trace.tensor(op.outputs[0]).dtype;
  return trace.tensor(root).kind == TensorKind::kParameter && IsFp32(trace.tensor(from)) &&
         (to == DataType::kBfloat16 || to == DataType::kFloat16) && !liveness.Writers(root).empty();
}

// A time that a weight is on the device.
struct Visit {
  TensorId weight{};
  size_t begin = 0;  // its copy starts before this op
  std::vector<size_t> readers{};
};

// Returns when weights on the host are on the device, in the order in which they come.
std::vector<Visit> VisitsOf(const Trace& trace, const Liveness& liveness,
                            std::span<const TensorId> weights) {
  const std::set<TensorId> hosted(weights.begin(), weights.end());
  std::vector<std::pair<size_t, TensorId>> uses;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    std::set<TensorId> used;
    for (const TensorId id : liveness.Storages(static_cast<OpId>(i))) {
      if (hosted.contains(id)) used.insert(id);
    }
    for (const TensorId id : used) uses.emplace_back(i, id);
  }
  const Bytes window = WindowOf(BytesOf(trace, hosted));
  // Returns the weights from a use on, as far as they fit in the window, and at least one.
  const auto ahead = [&](size_t from) {
    std::vector<TensorId> found;
    Bytes taken;
    for (size_t i = from; i < uses.size(); ++i) {
      if (std::ranges::find(found, uses[i].second) != found.end()) continue;
      taken += trace.tensor(uses[i].second).size;
      if (!found.empty() && taken > window) break;
      found.push_back(uses[i].second);
    }
    return found;
  };
  std::vector<Visit> visits;
  std::map<TensorId, size_t> here;  // indices of `visits`
  const auto fetch = [&](TensorId weight, size_t begin) {
    if (here.try_emplace(weight, visits.size()).second) visits.push_back({weight, begin});
  };
  for (const TensorId weight : ahead(0)) fetch(weight, 0);
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto& [op, weight] = uses[i];
    fetch(weight, op);
    visits[here.at(weight)].readers.push_back(op);
    if (i + 1 < uses.size() && uses[i + 1].first == op) continue;  // it reads another one, too
    const std::vector<TensorId> stay = ahead(i + 1);
    std::erase_if(
        here, [&](const auto& one) { return std::ranges::find(stay, one.first) == stay.end(); });
    for (const TensorId other : stay) fetch(other, op + 1);
  }
  return visits;
}

// Returns those of some parameters that leave if about `size` of their bytes do.
std::vector<TensorId> LeavingOf(const Trace& trace, std::span<const TensorId> weights, Bytes size) {
  const Liveness liveness(trace);
  const std::set<TensorId> all(weights.begin(), weights.end());
  std::vector<TensorId> uses, ordered;
  std::map<TensorId, std::pair<size_t, size_t>> places;  // the first and the last in `uses`
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    for (const TensorId id : liveness.Storages(static_cast<OpId>(i))) {
      if (!all.contains(id)) continue;
      const auto [place, is_first] = places.try_emplace(id, uses.size(), uses.size());
      if (is_first) ordered.push_back(id);
      place->second.second = uses.size();
      uses.push_back(id);
    }
  }
  const Bytes soon = WindowOf(BytesOf(trace, ordered)) * 2;
  const auto class_of = [&](TensorId id) -> size_t {
    if (trace.tensor(id).size > kWindow) return 2;
    const auto [first, last] = places.at(id);
    if (first == last) return 0;
    std::set<TensorId> between;
    Bytes bytes;
    for (size_t i = first + 1; i < last && bytes < soon; ++i) {
      if (uses[i] == id || !between.insert(uses[i]).second) continue;
      bytes += trace.tensor(uses[i]).size;
    }
    return bytes < soon ? 1 : 0;
  };
  std::array<std::vector<TensorId>, 3> classes;
  for (const TensorId id : ordered) classes[class_of(id)].push_back(id);
  std::vector<TensorId> found;
  Bytes left = size;
  for (const std::vector<TensorId>& members : classes) {
    const Bytes bytes = BytesOf(trace, members), wanted = std::min(left, bytes);
    Bytes taken, passed;
    for (const TensorId id : members) {
      const Bytes its = trace.tensor(id).size;
      passed += its;
      if (Int128{taken.count()} * bytes.count() >= Int128{wanted.count()} * passed.count()) {
        continue;
      }
      found.push_back(id);
      taken += its;
    }
    left -= std::min(left, taken);
  }
  return found;
}

// Returns true if an op writes the weight during a visit.
bool IsWritten(const Trace& trace, const Visit& visit) {
  return std::ranges::any_of(visit.readers, [&](size_t op) {
    const std::vector<TensorId>& outputs = trace.ops[op].outputs;
    return std::ranges::find(outputs, visit.weight) != outputs.end();
  });
}

}  // namespace

Trace WithHooks(const Trace& trace) {
  const Liveness liveness(trace);
  Trace to = trace;
  if (to.saved.empty()) to.saved = ReadInBackward(trace, liveness);
  std::map<TensorId, size_t> saved;  // by storage: its number in the order of packing
  for (const KeptForBackward& kept : to.saved) {
    if (!kept.unpacked.empty()) saved.try_emplace(liveness.Root(kept.tensor), saved.size());
  }
  std::optional<size_t> forward;  // its last op
  std::vector<TensorId> casts;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (trace.ops[i].phase == Phase::kForward) forward = i;
    if (IsCastOfParameter(trace, liveness, trace.ops[i])) casts.push_back(trace.ops[i].outputs[0]);
  }
  for (const auto& [id, number] : saved) {
    Tensor& tensor = to.tensors[Index(id)];
    tensor.held_until.reset();  // autograd held it
    tensor.movable &= tensor.size >= kSmallest;
  }
  NewNames names(trace);
  std::vector<OpId> first, last;  // by op: those that stand for it
  to.ops.clear();
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    first.push_back(static_cast<OpId>(to.ops.size()));
    Op& kept = to.ops.emplace_back(op);
    std::set<std::pair<size_t, TensorId>> made;  // the saved ones, in the order of packing
    for (const TensorId id : op.outputs) {
      const auto found = saved.find(liveness.Root(id));
      if (op.recomputable && found != saved.end()) made.emplace(found->second, found->first);
    }
    if (made.size() > 1) {
      const TensorId again = made.rbegin()->second;
      Op others = Marker(names.Of(op.name + ".others"), "spillway::others", op);
      std::ranges::copy_if(op.outputs, std::back_inserter(others.outputs), [&](TensorId id) {
        return liveness.Root(id) != again && saved.contains(liveness.Root(id));
      });
      std::erase_if(kept.outputs, [&](TensorId id) {
        return std::ranges::find(others.outputs, id) != others.outputs.end();
      });
      to.ops.push_back(std::move(others));
    }
    if (i == forward && !casts.empty()) {
      Op end = Marker(names.Of("autocast"), "spillway::autocast", op);
      end.inputs = casts;  // it ends with the result
      end.inputs.insert(end.inputs.end(), op.outputs.begin(), op.outputs.end());
      to.ops.push_back(std::move(end));
    }
    last.push_back(static_cast<OpId>(to.ops.size() - 1));
  }
  MoveWaits(last, to);
  for (Tensor& tensor : to.tensors) {
    if (tensor.held_until) tensor.held_until = last[Index(*tensor.held_until)];
  }
  MovePositions(first, to);
  StepHooks& hooks = to.hooks.emplace();
  hooks.places = PlacesOf(to);
  std::erase_if(to.saved, [&](const KeptForBackward& kept) {
    const TensorKind kind = trace.tensor(liveness.Root(kept.tensor)).kind;
    return kind != TensorKind::kActivation && kind != TensorKind::kGradient;
  });
  hooks.pack = hooks.unpack = kHook;
  hooks.offload = hooks.prefetch = hooks.evict = hooks.state = kMove;
  hooks.beside_copy = kBesideCopy;
  to.Validate();
  return to;
}

Trace WithHolds(Trace trace) {
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    std::optional<OpId> held = std::exchange(trace.tensors[i].held_until, std::nullopt);
    const auto last = liveness.LastUse(id);
    while (held && held > last && trace.op(*held).recomputable)
      held = static_cast<OpId>(Index(*held) - 1);
    if (held && held > last) trace.ops[Index(*held)].inputs.push_back(id);
  }
  return trace;
}

HostableWeights WeightsIn(const Trace& trace) {
  const Liveness liveness(trace);
  HostableWeights found;
  const auto is_taken = [](const Op& op) { return op.lane == kLane; };
  if (std::ranges::any_of(trace.ops, is_taken)) return found;
  const auto is_part = [&](OpId op) {
    return std::ranges::any_of(trace.op(op).outputs, [&](TensorId id) {
      return trace.tensor(id).kind == TensorKind::kOptimizerState && trace.tensor(id).movable;
    });
  };
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensors[i];
    const auto writers = liveness.Writers(id);
    if (tensor.alias_of || !tensor.movable || liveness.Uses(id).empty()) continue;
    if (tensor.kind != TensorKind::kParameter || tensor.size < kSmallest) continue;
    if (writers.empty()) {
      found.frozen.push_back(id);
    } else if (std::ranges::all_of(writers, is_part)) {
      found.trained.push_back(id);
    }
  }
  return found;
}

std::vector<TensorId> LeavingWeights(const Trace& trace, const HostableWeights& weights,
                                     Bytes size) {
  std::vector<TensorId> found = LeavingOf(trace, weights.frozen, size);
  const std::vector<TensorId> trained =
      LeavingOf(trace, weights.trained, size - BytesOf(trace, found));
  found.insert(found.end(), trained.begin(), trained.end());
  return found;
}

Trace WithWeightsOnHost(const Trace& trace, const Device& device,
                        std::span<const TensorId> weights) {
  if (weights.empty()) return trace;
  const Liveness liveness(trace);
  const Bandwidth link{device.h2d.bandwidth.bytes_per_second / 100 * kBesideOps};
  const Bandwidth back{device.d2h.bandwidth.bytes_per_second / 100 * kBesideOps};
  const Bytes window = WindowOf(BytesOf(trace, weights));
  const auto is_trained = [&](TensorId weight) { return !liveness.Writers(weight).empty(); };
  const std::vector<Visit> visits = VisitsOf(trace, liveness, weights);
  // Returns the op beside which the copy of a weight starts.
  const auto beside = [&](const Visit& visit) -> const Op& {
    return trace.ops[std::max<size_t>(visit.begin, 1) - 1];
  };
  const bool state_moves = std::ranges::any_of(weights, is_trained);
  Trace to = trace;
  to.ops.clear();
  for (const TensorId weight : weights) ForgetStorage(weight, liveness, to);
  NewNames names(trace);
  std::vector<std::map<TensorId, TensorId>> wanted(trace.ops.size());  // by op: copies of weights
  for (const Visit& visit : visits) {
    const auto id = static_cast<TensorId>(to.tensors.size());
    for (const size_t op : visit.readers) wanted[op].emplace(visit.weight, id);
    Tensor copy = trace.tensor(visit.weight);
    copy.name = names.Of(copy.name + ".copy");
    copy.kind = TensorKind::kActivation;
    copy.request.reset();
    copy.movable = false;
    to.tensors.push_back(std::move(copy));
  }
  std::vector<OpId> first, last, fetches;  // by op: those that stand for it; by visit
  std::vector<std::pair<size_t, OpId>> waits;
  std::deque<std::pair<OpId, TensorId>> leaving;  // copies to the host that keep memory
  std::vector<OpId> ended;                        // those for which the next update waits
  Bytes held;
  const auto here = [&] { return static_cast<OpId>(to.ops.size()); };
  const auto copy_of = [&](size_t visit) {
    return static_cast<TensorId>(trace.tensors.size() + visit);
  };
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    for (size_t next; (next = fetches.size()) < visits.size() && visits[next].begin == i;) {
      const Tensor& copy = to.tensor(copy_of(next));
      const Op& near = beside(visits[next]);
      // State has the other half of the link.
      const bool shares = state_moves && near.phase != Phase::kForward;
      Op fetch = NewOp(names.Of(copy.name + ".fetch"), "spillway::fetch", near,
                       TransferTime(copy.size * (shares ? 2 : 1), link));
      fetch.recorded->host = kFetch;
      fetch.outputs = {copy_of(next)};
      fetch.lane = kLane;
      if (i > 0)
        waits.emplace_back(to.ops.size(), last.back());  // it may have the memory of another
      fetches.push_back(here());
      to.ops.push_back(std::move(fetch));
    }
    first.push_back(here());
    Op op = trace.ops[i];
    const auto is_wanted = [&](TensorId id) { return wanted[i].contains(liveness.Root(id)); };
    if (wanted[i].empty()) {
      to.ops.push_back(std::move(op));
    } else if (!op.recomputable) {
      for (auto* ids : {&op.inputs, &op.outputs}) {
        for (TensorId& id : *ids) {
          if (is_wanted(id)) id = wanted[i].at(liveness.Root(id));
        }
      }
      if (op.phase == Phase::kUpdate) {
        for (const OpId leave : std::exchange(ended, {})) waits.emplace_back(to.ops.size(), leave);
      }
      to.ops.push_back(std::move(op));
    } else {  // what is recomputed does without the copies of this time
      std::erase_if(op.inputs, is_wanted);
      Op read = Marker(names.Of(op.name + ".read"), "spillway::read", op);
      Bytes bytes, again;
      for (const auto& [weight, copy] : wanted[i]) {
        bytes += to.tensor(copy).size;
        if (!is_trained(weight)) again += to.tensor(copy).size;  // others come for their update
        read.inputs.push_back(copy);
        waits.emplace_back(to.ops.size(), fetches[Index(copy) - trace.tensors.size()]);
      }
      RecordedCost& cost = *op.recorded;
      cost.again = {cost.time + TransferTime(again, link), cost.host, cost.workspace + bytes};
      to.ops.push_back(std::move(op));
      to.ops.push_back(std::move(read));
    }
    last.push_back(static_cast<OpId>(to.ops.size() - 1));
    for (const auto& [weight, copy] : wanted[i]) {
      const Visit& visit = visits[Index(copy) - trace.tensors.size()];
      if (visit.readers.back() != i || !IsWritten(trace, visit)) continue;
      const Tensor& tensor = to.tensor(copy);
      Op leave = NewOp(names.Of(tensor.name + ".leave"), "spillway::leave", trace.ops[i],
                       TransferTime(tensor.size, back));
      leave.recorded->host = kFetch;
      leave.inputs = {copy};
      leave.lane = kLaneOut;
      waits.emplace_back(to.ops.size(), last.back());
      leaving.emplace_back(here(), copy);
      held += tensor.size;
      to.ops.push_back(std::move(leave));
      while (leaving.size() > 1 && held > window) {  // the program waits for earlier ones
        const auto [copied, left] = leaving.front();
        leaving.pop_front();
        held -= to.tensor(left).size;
        to.ops[Index(last.back())].inputs.push_back(left);
        ended.push_back(copied);
      }
    }
  }
  MoveWaits(last, to);
  for (const auto& [op, other] : waits) to.ops[op].after.push_back(other);
  for (Tensor& tensor : to.tensors) {
    if (tensor.held_until) tensor.held_until = last[Index(*tensor.held_until)];
  }
  MovePositions(first, to);
  to.Validate();
  return to;
}

}  // namespace spillway::lab
