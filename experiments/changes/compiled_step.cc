#include "experiments/changes/compiled_step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

// The host launches a kernel in so much, as `spillway_torch` assumes for an operator.
constexpr Duration kLaunch = Duration::Microseconds(7);

Duration TimeOf(const Trace& trace, std::span<const Op> recorded, const CompiledCut& cut,
                const CostModel& cost) {
  double flops = 0, traffic = 0, products = 0, others = 0;  // times are in ps
  for (const Op& op : recorded) {
    const auto time = static_cast<double>(cost.Kernels(op, 0, op.batch)[0].time.picoseconds());
    const Slot& slot = op.slots[0];
    flops += static_cast<double>(slot.flops);
    if (slot.flops == 0) traffic += static_cast<double>(slot.traffic.count());
    (slot.flops > 0 ? products : others) += time;
  }
  const auto own = static_cast<double>(trace.compiled.front().flops);  // it runs no product again
  const double share = flops > own ? own / flops : 1;                  // of the step in graphs
  const double more = own > 0 ? static_cast<double>(cut.flops) / own : 1;
  const double bytes = static_cast<double>(cut.traffic.count()) / std::max(1.0, traffic);
  const double time = products * (1 - share + share * more) + others * (1 - share + bytes);
  constexpr double kMost = 9e18;  // which `Trace::Validate` refuses
  return std::max(Duration::Picoseconds(std::llround(std::min(time, kMost))),
                  kLaunch * cut.kernels);
}

}  // namespace

std::optional<Trace> Compiled(const Trace& trace, const CompiledCut& cut, const CostModel& cost) {
  const auto updates = std::ranges::find(trace.ops, Phase::kUpdate, &Op::phase);
  const auto before = static_cast<size_t>(updates - trace.ops.begin());
  if (before == 0 || std::any_of(updates, trace.ops.end(),
                                 [](const Op& op) { return op.phase != Phase::kUpdate; })) {
    return std::nullopt;
  }
  const Liveness liveness(trace);
  Op op = NewOp(NewNames(trace).Of("compiled"), "compiled", trace.ops[before - 1],
                TimeOf(trace, std::span(trace.ops).first(before), cut, cost));
  op.recorded->host = kLaunch;
  Trace to = trace;
  to.hooks.reset();
  ForgetRecorded(to);
  std::vector<bool> inside(trace.tensors.size());  // by storage: only what the op replaces uses it
  Bytes kept;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensors[i];
    if (liveness.Root(id) != id) continue;
    const auto is_early = [&](OpId use) { return Index(use) < before; };
    const bool early = std::ranges::any_of(liveness.Uses(id), is_early);
    const bool stays = IsPersistent(tensor.kind) || tensor.kind == TensorKind::kInput;
    const bool later = std::ranges::any_of(liveness.Uses(id), std::not_fn(is_early)) ||
                       (tensor.held_until && !is_early(*tensor.held_until));
    inside[i] = !later && (stays ? !early && !IsPersistent(tensor.kind) : true);
    if (!early || inside[i]) continue;
    if (stays) op.inputs.push_back(id);
    if (!stays || std::ranges::any_of(liveness.Writers(id), is_early)) op.outputs.push_back(id);
    if (!stays) kept += tensor.size;
  }
  op.recorded->workspace = std::max(Bytes(), cut.memory - kept);
  for (size_t i = 0; i < to.tensors.size(); ++i) {
    if (inside[Index(liveness.Root(static_cast<TensorId>(i)))]) ForgetTensor(to.tensors[i]);
  }
  std::vector<OpId> places;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    places.push_back(static_cast<OpId>(i < before ? 0 : i - before + 1));
  }
  for (Tensor& tensor : to.tensors) {
    if (tensor.held_until) tensor.held_until = places[Index(*tensor.held_until)];
  }
  to.ops.erase(to.ops.begin(), to.ops.begin() + static_cast<std::ptrdiff_t>(before));
  to.ops.insert(to.ops.begin(), std::move(op));
  MoveWaits(places, to);
  to.Validate();
  return to;
}

}  // namespace spillway::lab
