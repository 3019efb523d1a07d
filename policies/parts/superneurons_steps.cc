#include "policies/parts/superneurons_steps.h"

#include <algorithm>

#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// Returns true if output `i` of the op is a layer's result: no statistic of the batch and no loss.
bool IsResult(const Op& op, size_t i) {
  return op.phase == Phase::kForward && (!StepOf(op).exists() || OutputRole(op, i) == Role::kY);
}

// Returns the bytes of the counted tensors that the op uses. Tensors that share a storage count
// separately.
Bytes Sum(const Trace& trace, const std::vector<bool>& counted, const Op& op) {
  Bytes sum;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *list) {
      if (counted[Index(id)]) sum += trace.tensor(id).size;
    }
  }
  return sum;
}

void AddUnique(std::vector<TensorId>& list, TensorId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

}  // namespace

std::vector<bool> SuperNeuronsCounted(const Trace& trace) {
  std::vector<bool> counted(trace.tensors.size());
  for (const Op& op : trace.ops) {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorKind kind = trace.tensor(op.outputs[i]).kind;
      if (kind == TensorKind::kGradient || (kind == TensorKind::kActivation && IsResult(op, i))) {
        counted[Index(op.outputs[i])] = true;
      }
    }
  }
  return counted;
}

Bytes SuperNeuronsLayerPeak(const Trace& trace) {
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  Bytes peak;
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::kBackward) peak = std::max(peak, Sum(trace, counted, op));
  }
  return peak;
}

void SuperNeuronsSteps::Plan(const Trace& trace, const Liveness& liveness,
                             SuperNeuronsOffload offload, SuperNeuronsRecompute recompute) {
  FindRoles(trace, liveness, offload, recompute != SuperNeuronsRecompute::kNone);
  FindLastForward(trace, liveness);
  FindSegments(trace, liveness, recompute);
  FindNeeds(trace, liveness);
  FindPreviousConvs(trace);
}

void SuperNeuronsSteps::FindRoles(const Trace& trace, const Liveness& liveness,
                                  SuperNeuronsOffload offload, bool drop) {
  roles_.resize(trace.tensors.size());
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i]) roles_[Index(liveness.Root(static_cast<TensorId>(i)))].data = true;
  }
  const bool checkpoints = offload == SuperNeuronsOffload::kCheckpoints;
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::kForward) continue;
    // An op's first input is never the labels.
    if (!op.inputs.empty() && trace.tensor(op.inputs.front()).kind == TensorKind::kInput) {
      Role& image = roles_[Index(liveness.Root(op.inputs.front()))];
      image.data = true;
      image.leaves = checkpoints;
    }
    const bool is_conv = Convolves(op) && offload != SuperNeuronsOffload::kNone;
    const OpStep& step = StepOf(op);  // joins, concatenations and forks have several x or y
    const bool is_other = checkpoints && (step.inputs.repeats || step.outputs.repeats);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorId storage = liveness.Root(op.outputs[i]);
      Role& role = roles_[Index(storage)];
      role.statistic = !role.data && trace.tensor(storage).kind == TensorKind::kActivation;
      if (!IsResult(op, i)) continue;
      role.leaves = role.leaves || is_conv || is_other;
    }
  }
  if (!drop) return;
  for (size_t i = 0; i < roles_.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (!roles_[i].data || trace.tensor(id).kind != TensorKind::kActivation) continue;
    const auto writers = liveness.Writers(id);
    roles_[i].dropped = std::all_of(writers.begin(), writers.end(), [&](OpId writer) {
      const Op& op = trace.op(writer);
      return op.recomputable && op.phase == Phase::kForward && RowOf(op.type).cheap;
    });
  }
}

void SuperNeuronsSteps::FindLastForward(const Trace& trace, const Liveness& liveness) {
  written_last_.resize(trace.ops.size());
  used_last_.resize(trace.ops.size());
  for (size_t i = 0; i < roles_.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (!roles_[i].data) continue;
    std::optional<OpId> used, written;
    bool comes_back = false;
    for (const OpId use : liveness.Uses(id)) {
      if (trace.op(use).phase != Phase::kForward) comes_back = used.has_value();
      if (comes_back || trace.op(use).phase != Phase::kForward) break;
      used = use;
    }
    if (!comes_back) continue;
    for (const OpId writer : liveness.Writers(id)) {
      if (trace.op(writer).phase == Phase::kForward) written = writer;
    }
    used_last_[Index(*used)].push_back(id);
    // The image is there from the start, so it leaves with the first op.
    written_last_[written ? Index(*written) : Index(*liveness.FirstUse(id))].push_back(id);
  }
}

void SuperNeuronsSteps::FindSegments(const Trace& trace, const Liveness& liveness,
                                     SuperNeuronsRecompute recompute) {
  drops_.resize(trace.ops.size());
  if (recompute == SuperNeuronsRecompute::kNone || recompute == SuperNeuronsRecompute::kSpeed) {
    return;
  }
  constexpr uint32_t kNoSegment = 0xffffffff;
  std::vector<uint32_t> segment_of_op(trace.ops.size(), kNoSegment);
  std::vector<uint32_t> segment_of_storage(trace.tensors.size(), kNoSegment);
  std::vector<Bytes> cost;  // by segment: the inputs and outputs of its layers
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.phase != Phase::kForward) continue;
    uint32_t segment = kNoSegment;
    if (RowOf(op.type).cheap) {
      if (!op.inputs.empty()) segment = segment_of_storage[Index(liveness.Root(op.inputs.front()))];
      if (segment == kNoSegment) {
        segment = static_cast<uint32_t>(cost.size());
        cost.emplace_back();
      }
      cost[segment] += Sum(trace, counted, op);
    }
    segment_of_op[i] = segment;
    for (const TensorId output : op.outputs) {
      segment_of_storage[Index(liveness.Root(output))] = segment;
    }
  }
  const Bytes peak = SuperNeuronsLayerPeak(trace);
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const uint32_t segment = segment_of_op[i];
    drops_[i] = segment != kNoSegment &&
                (recompute == SuperNeuronsRecompute::kMemory || cost[segment] > peak);
  }
}

void SuperNeuronsSteps::FindNeeds(const Trace& trace, const Liveness& liveness) {
  needs_.resize(trace.ops.size());
  needed_by_.resize(trace.tensors.size());
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    std::vector<TensorId>& needs = needs_[i];
    const auto add_inputs = [&](const Op& reader) {
      for (const TensorId input : reader.inputs) {
        const TensorId storage = liveness.Root(input);
        if (roles_[Index(storage)].data) AddUnique(needs, storage);
      }
    };
    add_inputs(op);
    if (op.phase != Phase::kForward) {
      for (size_t next = 0; next < needs.size(); ++next) {
        if (!roles_[Index(needs[next])].dropped) continue;
        for (const OpId writer : liveness.Writers(needs[next])) add_inputs(trace.op(writer));
      }
    }
    for (const TensorId storage : needs) {
      needed_by_[Index(storage)].push_back(static_cast<OpId>(i));
    }
  }
}

void SuperNeuronsSteps::FindPreviousConvs(const Trace& trace) {
  previous_conv_.resize(trace.ops.size());
  std::optional<OpId> next;
  for (size_t i = trace.ops.size(); i-- > 0;) {
    const Op& op = trace.ops[i];
    if (op.phase != Phase::kBackward) continue;
    const auto id = static_cast<OpId>(i);
    if (!next) next = id;
    if (Convolves(op) || op.type == OpType::kLinear) previous_conv_[i] = next;
    if (Convolves(op)) next = id;
  }
}

std::optional<OpId> SuperNeuronsSteps::NextNeed(TensorId storage, OpId op) const {
  const std::vector<OpId>& ops = needed_by_[Index(storage)];
  const auto next = std::upper_bound(ops.begin(), ops.end(), op);
  return next == ops.end() ? std::nullopt : std::optional(*next);
}

}  // namespace spillway::policies
