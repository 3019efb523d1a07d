#include "experiments/changes/other_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "traces/base/units.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

// The part of the update phase that an optimizer with two moments for each parameter runs.
struct AdamUpdate {
  std::vector<bool> ops;  // by op: true iff it is of this part
  size_t last = 0;        // the last of them
  // The storages that these ops use: large parameters that they write, gradients, large optimizer
  // state, and all that is freed in the step.
  std::vector<TensorId> parameters, gradients, moments, rest;

  bool Has(OpId op) const { return ops[Index(op)]; }
};

// Updates in parts have at most so many bytes of state each if there are not too many parts then,
// and there are at least so many, as `spillway_torch.fit` divides them.
constexpr Bytes kMostOfPart(64 << 20);
constexpr int64_t kManyParts = 128, kParts = 16;

bool IsLarge(const Tensor& tensor) { return Elements(tensor) >= kLeastMoments; }

// Returns the elements and the bytes of all the tensors.
int64_t ElementsOf(const Trace& trace, std::span<const TensorId> ids) {
  int64_t sum = 0;
  for (const TensorId id : ids) sum += Elements(trace.tensor(id));
  return sum;
}
Bytes BytesOf(const Trace& trace, std::span<const TensorId> ids) {
  Bytes sum;
  for (const TensorId id : ids) sum += trace.tensor(id).size;
  return sum;
}

// Finds the ops of the update phase that use a large parameter, large optimizer state, or a
// temporary tensor that such ops write. Ops that only use gradients clip or scale them, whatever
// the optimizer.
std::vector<bool> OptimizerOps(const Trace& trace, const Liveness& liveness) {
  std::vector<bool> ops(trace.ops.size()), own(trace.tensors.size());
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = IsPersistent(trace.tensors[i].kind) && IsLarge(trace.tensors[i]);
  }
  const auto is_own = [&](TensorId id) { return own[Index(liveness.Root(id))]; };
  const auto is_temporary = [&](TensorId id) {
    const OpId first = *liveness.FirstUse(id);
    return !IsPersistent(trace.tensor(id).kind) && trace.op(first).phase == Phase::kUpdate;
  };
  // An op that allocates a temporary tensor comes before the op that writes it and shows whose it
  // is.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      if (op.phase != Phase::kUpdate) continue;
      const bool is_one =
          std::ranges::any_of(op.inputs, is_own) || std::ranges::any_of(op.outputs, is_own);
      if (!is_one) continue;
      ops[i] = true;
      for (const TensorId id : op.outputs) {
        const TensorId storage = liveness.Root(id);
        if (is_temporary(storage)) own[Index(storage)] = true;
      }
    }
  }
  return ops;
}

std::optional<AdamUpdate> FindAdam(const Trace& trace, const Liveness& liveness) {
  AdamUpdate update;
  update.ops = OptimizerOps(trace, liveness);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness.Root(id) != id) continue;
    const auto has = [&](OpId op) { return update.Has(op); };
    if (std::ranges::none_of(liveness.Uses(id), has)) continue;
    const TensorKind kind = trace.tensor(id).kind;
    if (kind == TensorKind::kParameterGradient) {
      update.gradients.push_back(id);
    } else if (!IsPersistent(kind)) {
      update.rest.push_back(id);
    } else if (!IsLarge(trace.tensor(id))) {
      continue;
    } else if (kind == TensorKind::kOptimizerState) {
      if (!std::ranges::all_of(liveness.Uses(id), has)) return std::nullopt;
      update.moments.push_back(id);
    } else if (std::ranges::any_of(liveness.Writers(id), has)) {
      update.parameters.push_back(id);
    }
  }
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (update.ops[i]) update.last = i;
  }
  if (update.parameters.empty() ||
      ElementsOf(trace, update.moments) != 2 * ElementsOf(trace, update.parameters)) {
    return std::nullopt;
  }
  return update;
}

// Returns true iff only the update uses a storage.
bool IsTemporary(const Liveness& liveness, const AdamUpdate& update, TensorId id) {
  return std::ranges::all_of(liveness.Uses(id), [&](OpId use) { return update.Has(use); });
}

// Returns the trace with `made` in place of the ops of the update, and without their temporary
// tensors. What the update used remains until then. Each of `parts` follows the op with its number,
// and the last op of the update is `made`.
Trace WithUpdate(const Trace& trace, const Liveness& liveness, const AdamUpdate& update,
                 const Op& made, std::span<const std::pair<size_t, Op>> parts = {}) {
  Trace to = trace;
  to.ops.clear();
  std::vector<OpId> places(trace.ops.size());
  auto part = parts.begin();
  const auto add_parts = [&](size_t behind) {
    for (; part != parts.end() && part->first == behind; ++part) to.ops.push_back(part->second);
  };
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (i == update.last) {
      add_parts(i);
      to.ops.push_back(made);
    } else if (!update.ops[i]) {
      to.ops.push_back(trace.ops[i]);
    }
    places[i] = static_cast<OpId>(std::max<size_t>(to.ops.size(), 1) - 1);
    add_parts(i);
  }
  const OpId here = places[update.last];
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (update.ops[i]) places[i] = here;
  }
  for (Tensor& tensor : to.tensors) {
    if (tensor.held_until) tensor.held_until = places[Index(*tensor.held_until)];
  }
  MoveWaits(places, to);
  MovePositions(places, to);
  for (const TensorId id : update.rest) {
    std::optional<OpId>& held = to.tensors[Index(id)].held_until;
    if (IsTemporary(liveness, update, id)) {
      held.reset();
    } else {
      held = std::max(held.value_or(here), here);
    }
  }
  ForgetRecorded(to);
  return to;
}

// Returns the op of the update, without operands, time and host time of the others.
Op UpdateOp(const Trace& trace, const AdamUpdate& update, const std::string& name) {
  Op op = NewOp(fmt::format("{}.{}", name, update.last), name, trace.ops[update.last], {});
  op.recorded->host = {};
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (update.ops[i]) op.recorded->host += trace.ops[i].recorded->host;
  }
  return op;
}

// Returns the op of backward that completes a gradient.
OpId CompletedBy(const Trace& trace, const Liveness& liveness, TensorId gradient) {
  OpId last{};
  for (const OpId use : liveness.Uses(gradient)) {
    if (trace.op(use).phase == Phase::kBackward) last = use;
  }
  return last;
}

// When the copies to the host end that begin with gradients.
struct GradientCopies {
  std::vector<OpId> ends;  // by gradient: the op that then runs, or the update
  Duration late;           // from the end of the last op before the update until the last of them
};

// Copies go one after another, each after the last op that makes its gradient.
GradientCopies CopyGradients(const Trace& trace, const Liveness& liveness, const AdamUpdate& update,
                             std::span<const TensorId> gradients, const CostModel& cost) {
  std::vector<Duration> done;  // by op before the update
  Duration host, now;
  for (size_t i = 0; i < update.last; ++i) {
    const Op& op = trace.ops[i];
    if (!update.ops[i]) {
      host += op.recorded->host;
      now = std::max(now + op.recorded->gap, host) + cost.Kernels(op, 0, op.batch)[0].time;
    }
    done.push_back(now);
  }
  std::vector<std::pair<OpId, size_t>> order;  // the op that completes a gradient, the gradient
  for (size_t i = 0; i < gradients.size(); ++i) {
    order.emplace_back(CompletedBy(trace, liveness, gradients[i]), i);
  }
  std::ranges::sort(order);
  GradientCopies copies{std::vector<OpId>(gradients.size()), {}};
  Duration link;
  for (const auto& [op, gradient] : order) {
    const Bytes size = trace.tensor(gradients[gradient]).size;
    link = std::max(link, done[Index(op)]) + cost.CopyTime(Direction::kToHost, size);
    const auto end = std::ranges::lower_bound(done, link) - done.begin();
    copies.ends[gradient] = static_cast<OpId>(std::min<size_t>(end, update.last));
  }
  copies.late = std::max(Duration(), link - now);
  return copies;
}

// Returns true iff the update alone uses gradients behind backward, and no pass adds to those of
// another one.
bool AreUsedOnce(const Trace& trace, const Liveness& liveness, const AdamUpdate& update) {
  size_t forward = 0;  // the number of ops up to the last one of forward
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (trace.ops[i].phase == Phase::kForward) forward = i + 1;
  }
  return std::ranges::all_of(update.gradients, [&](TensorId id) {
    const auto is_later = [&](OpId use) {
      return trace.op(use).phase == Phase::kUpdate && !update.Has(use);
    };
    return Index(*liveness.FirstUse(id)) >= forward &&
           std::ranges::none_of(liveness.Uses(id), is_later);
  });
}

std::vector<TensorId> GradientsOf(const Trace& trace, const AdamUpdate& update, bool large) {
  std::vector<TensorId> gradients;
  for (const TensorId id : update.gradients) {
    if (IsLarge(trace.tensor(id)) == large) gradients.push_back(id);
  }
  return gradients;
}

// Takes gradients of the step before, which the recorded program held into this one, out of the
// memory of `less`.
void ForgetOldGradients(const Trace& trace, const Liveness& liveness,
                        std::span<const TensorId> gradients, Trace& less) {
  std::set<std::vector<int64_t>> shapes;
  for (const TensorId id : gradients) shapes.insert(trace.tensor(id).shape);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensors[i];
    if (tensor.kind == TensorKind::kInput && !tensor.alias_of && !liveness.FirstUse(id) &&
        shapes.contains(tensor.shape)) {
      ForgetStorage(id, liveness, less);
    }
  }
}

// A parameter and its gradient, as the parts of an update know them.
struct Updated {
  TensorId parameter, gradient;
  Bytes state;   // of its moments
  OpId ready{};  // the op that completes the gradient, or the last one that uses the parameter
};

// Returns the large parameters in the order in which backward completes their gradients if updates
// are early, or else in their own; nullopt if they have not one gradient each.
std::optional<std::vector<Updated>> UpdatedOf(const Trace& trace, const Liveness& liveness,
                                              const AdamUpdate& update, bool early) {
  // The update is given parameters and gradients in lists of the same order. An early update of
  // another parameter of the size would write what backward, and what is recomputed, still reads.
  std::vector<size_t> places(trace.tensors.size());
  size_t place = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (!update.ops[i]) continue;
    for (const TensorId input : trace.ops[i].inputs) {
      size_t& its = places[Index(liveness.Root(input))];
      if (its == 0) its = ++place;
    }
  }
  const auto as_given = [&](std::vector<TensorId> ids) {
    std::ranges::stable_sort(ids, {}, [&](TensorId id) { return places[Index(id)]; });
    return ids;
  };
  std::multimap<int64_t, TensorId> parameters;  // by elements
  for (const TensorId id : as_given(update.parameters)) {
    parameters.emplace(Elements(trace.tensor(id)), id);
  }
  const Bytes moments = BytesOf(trace, update.moments);
  const int64_t elements = ElementsOf(trace, update.parameters);
  std::vector<Updated> order;
  for (const TensorId id : as_given(GradientsOf(trace, update, true))) {
    const int64_t size = Elements(trace.tensor(id));
    const auto found = parameters.lower_bound(size);  // the first of this size
    if (found == parameters.end() || found->first != size) return std::nullopt;
    const auto state = static_cast<int64_t>(Int128{moments.count()} * size / elements);
    OpId ready = CompletedBy(trace, liveness, id);
    for (const OpId use : liveness.Uses(found->second)) {
      if (!update.Has(use)) ready = std::max(ready, use);
    }
    order.push_back({found->second, id, Bytes(state), ready});
    parameters.erase(found);
  }
  if (!parameters.empty()) return std::nullopt;
  std::ranges::stable_sort(order, {}, [&](const Updated& one) {
    return early ? Index(one.ready) : Index(one.parameter);
  });
  return order;
}

}  // namespace

std::optional<Trace> With8BitOptimizer(const Trace& trace, const Device& device) {
  constexpr int64_t kBlock = 256;  // elements that share a scale
  const Liveness liveness(trace);
  const std::optional<AdamUpdate> update = FindAdam(trace, liveness);
  if (!update) return std::nullopt;
  Trace small = trace;
  for (const TensorId id : update->moments) {
    Tensor tensor = trace.tensor(id);
    const int64_t elements = Elements(tensor);
    ForgetStorage(id, liveness, small);  // its views
    tensor.size = Bytes(elements + 4 * ((elements + kBlock - 1) / kBlock));
    tensor.shape = {tensor.size.count()};
    tensor.dtype = DataType::kUint8;
    small.tensors[Index(id)] = std::move(tensor);
  }
  Op op = UpdateOp(trace, *update, "adam8bit");
  op.outputs = update->parameters;
  op.outputs.insert(op.outputs.end(), update->moments.begin(), update->moments.end());
  op.inputs = op.outputs;
  op.inputs.insert(op.inputs.end(), update->gradients.begin(), update->gradients.end());
  op.recorded->time =
      TransferTime(BytesOf(small, op.inputs) + BytesOf(small, op.outputs), device.dram);
  small = WithUpdate(small, liveness, *update, op);
  small.Validate();
  return small;
}

std::optional<OffloadedStep> WithOffloadedOptimizer(const Trace& trace, const Device& device,
                                                    const CostModel& cost) {
  const Liveness liveness(trace);
  const std::optional<AdamUpdate> update = FindAdam(trace, liveness);
  if (!update || !AreUsedOnce(trace, liveness, *update)) return std::nullopt;
  const std::vector<TensorId> copied = GradientsOf(trace, *update, true);
  const std::vector<TensorId> small = GradientsOf(trace, *update, false);
  Trace less = trace;
  const Bytes moments = BytesOf(trace, update->moments);
  const Bytes parameters = BytesOf(trace, update->parameters);
  const Bytes gradients = BytesOf(trace, copied);
  Op op = UpdateOp(trace, *update, "offloaded_adam");
  op.inputs = op.outputs = update->parameters;
  op.inputs.insert(op.inputs.end(), small.begin(), small.end());
  const GradientCopies copies = CopyGradients(trace, liveness, *update, copied, cost);
  const Duration on_host =
      TransferTime(2 * moments + 2 * parameters + gradients, device.host_update);
  const Duration back = cost.CopyTime(Direction::kToDevice, parameters);
  op.recorded->time = copies.late + std::max(on_host, back);
  for (size_t i = 0; i < copied.size(); ++i) {
    less.tensors[Index(copied[i])].held_until = copies.ends[i];
  }
  ForgetOldGradients(trace, liveness, copied, less);
  less = WithUpdate(less, liveness, *update, op);
  for (const TensorId id : update->moments) ForgetStorage(id, liveness, less);
  less.Validate();
  return OffloadedStep{std::move(less), moments + parameters + gradients};
}

std::optional<Trace> WithUpdatesInParts(const Trace& trace, const CostModel& cost, bool early,
                                        int64_t eighths) {
  const Liveness liveness(trace);
  const std::optional<AdamUpdate> update = FindAdam(trace, liveness);
  if (!update || (early && !AreUsedOnce(trace, liveness, *update))) return std::nullopt;
  const std::optional<std::vector<Updated>> order = UpdatedOf(trace, liveness, *update, early);
  if (!order) return std::nullopt;
  Duration kernels;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (update->ops[i]) kernels += cost.Kernels(op, 0, op.batch)[0].time;
  }
  const Bytes moments = BytesOf(trace, update->moments);
  Bytes temporary;
  for (const TensorId id : update->rest) {
    if (IsTemporary(liveness, *update, id)) temporary += trace.tensor(id).size;
  }
  const auto share_of = [&](int64_t whole, Bytes state) {
    return static_cast<int64_t>(Int128{whole} * state.count() / moments.count());
  };
  Trace less = trace;
  for (const TensorId id : update->moments) ForgetStorage(id, liveness, less);
  if (early) ForgetOldGradients(trace, liveness, update->gradients, less);
  // Returns the op that updates these parameters, of which it needs so much state.
  const auto part_of = [&](const std::string& name, Bytes state, std::span<const Updated> of,
                           bool movable) {
    Op op = UpdateOp(trace, *update, name);
    RecordedCost& cost_of = *op.recorded;
    cost_of.host = Duration::Picoseconds(share_of(cost_of.host.picoseconds(), state));
    cost_of.time = Duration::Picoseconds(share_of(kernels.picoseconds(), state));
    cost_of.workspace = Bytes(share_of(temporary.count(), state));
    if (state > Bytes()) {
      Tensor tensor;
      tensor.name = op.name + ".state";
      tensor.kind = TensorKind::kOptimizerState;
      tensor.size = state;
      tensor.shape = {state.count()};
      tensor.dtype = DataType::kUint8;
      tensor.movable = movable;
      op.outputs.push_back(static_cast<TensorId>(less.tensors.size()));
      less.tensors.push_back(std::move(tensor));
    }
    for (const Updated& one : of) op.outputs.push_back(one.parameter);
    op.inputs = op.outputs;
    for (const Updated& one : of) op.inputs.push_back(one.gradient);
    return op;
  };
  const Bytes most = std::min(std::max(kMostOfPart, Bytes(moments.count() / kManyParts)),
                              Bytes(moments.count() / kParts));
  const Bytes wanted(eighths == 8 ? moments.count() : moments.count() / 8 * eighths);
  std::vector<std::pair<size_t, Op>> parts;
  std::vector<Updated> of, rest;  // the parameters of the part, and of the op behind all parts
  Bytes size, done, behind;       // the state of these, and of all parts
  const auto end_part = [&](OpId ready) {
    parts.emplace_back(early ? Index(ready) : update->last,
                       part_of(fmt::format("update{}", parts.size()), size, of, true));
    done += size;
    size = Bytes();
    of.clear();
  };
  for (const Updated& one : *order) {
    Bytes left = one.state;
    while (left > Bytes() && done + size < wanted) {
      if (of.empty() || of.back().gradient != one.gradient) of.push_back(one);
      const Bytes taken = std::min(left, most - size);
      size += taken;
      left -= taken;
      if (size == most) end_part(one.ready);
    }
    if (left > Bytes()) rest.push_back(one);
    behind += left;
  }
  if (size > Bytes()) end_part(order->back().ready);
  Op last = part_of("update_rest", behind, rest, false);
  const std::vector<TensorId> small = GradientsOf(trace, *update, false);
  last.inputs.insert(last.inputs.end(), small.begin(), small.end());
  less = WithUpdate(less, liveness, *update, last, parts);
  for (const Updated& one : *order) {
    Tensor& gradient = less.tensors[Index(one.gradient)];
    gradient.movable = false;
    if (early) gradient.held_until.reset();
  }
  less.Validate();
  return less;
}

}  // namespace spillway::lab
