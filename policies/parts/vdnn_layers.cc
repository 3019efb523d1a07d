#include "policies/parts/vdnn_layers.h"

#include <algorithm>

#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// Returns true if the set has the inputs of the op's layer. `ordinal` is the number of convolutions
// before it.
bool IsOffloadLayer(OffloadSet set, const Op& op, size_t ordinal) {
  if (!Convolves(op)) {
    return set == OffloadSet::kAll && RowOf(op.type).group == LayerGroup::kFeature;
  }
  return set == OffloadSet::kAlternateConv ? ordinal % 2 == 0 : set != OffloadSet::kNone;
}

// Returns the last forward op that uses the storage if it is an activation or the image and a later
// phase uses it again; otherwise nullopt.
std::optional<OpId> LastForwardUse(const Trace& trace, const Liveness& liveness, TensorId storage) {
  const TensorKind kind = trace.tensor(storage).kind;
  if (kind != TensorKind::kActivation && kind != TensorKind::kInput) return std::nullopt;
  std::optional<OpId> last;
  for (const OpId use : liveness.Uses(storage)) {
    if (trace.op(use).phase != Phase::kForward) return last;
    last = use;
  }
  return std::nullopt;
}

void AddUnique(std::vector<TensorId>& list, TensorId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

}  // namespace

PlacementOrder ReadPlacementOrder(Params& params) {
  return params.Enum<PlacementOrder>(
      "order", "derivative-first",
      {{"derivative-first", PlacementOrder::kDerivativeFirst},
       {"prefetch-first", PlacementOrder::kPrefetchFirst}},
      "what is placed first: the tensors of a backward step, or the X it prefetches");
}

std::vector<Params::Values> PlacementOrders() {
  return {{{"order", "derivative-first"}}, {{"order", "prefetch-first"}}};
}

void VdnnLayers::Plan(const Trace& trace, const Liveness& liveness, OffloadSet set) {
  for (const traces::Layer& layer : trace.layers) {
    layers_.push_back({.is_conv = RowOf(layer.type).convolves,
                       .is_step = RowOf(layer.type).group != LayerGroup::kInPlace});
  }
  leaves_.resize(trace.tensors.size());
  size_t convolutions = 0;
  for (const Op& op : trace.ops) {
    steps_.push_back({op.phase, static_cast<uint32_t>(Index(op.layer))});
    if (op.phase != Phase::kForward) continue;
    if (Convolves(op)) layers_[Index(op.layer)].is_conv = true;
    const size_t ordinal = Convolves(op) ? convolutions++ : 0;
    if (!IsOffloadLayer(set, op, ordinal)) continue;
    for (const TensorId input : op.inputs) {
      const TensorId storage = liveness.Root(input);
      if (const auto last = LastForwardUse(trace, liveness, storage)) {
        AddUnique(layers_[Index(trace.op(*last).layer)].inputs, storage);
        leaves_[Index(storage)] = true;
      }
    }
  }
}

void VdnnLayers::BeginIteration() {
  for (Layer& layer : layers_) layer.offloaded = layer.prefetched = false;
}

VdnnLayers::Layer* VdnnLayers::OffloadedWith(OpId op) {
  const Step step = steps_[Index(op)];
  return step.phase == Phase::kForward ? &layers_[step.layer] : nullptr;
}

VdnnLayers::Layer* VdnnLayers::FindPrefetchLayer(OpId op) {
  const Step step = steps_[Index(op)];
  if (step.phase != Phase::kBackward || !layers_[step.layer].is_step) return nullptr;
  for (size_t id = step.layer; id-- > 0;) {
    Layer& layer = layers_[id];
    if (layer.offloaded && !layer.prefetched) return &layer;
    if (layer.is_conv) return nullptr;
  }
  return nullptr;
}

bool VdnnLayers::Prefetch(PolicyContext& context, Layer& layer) {
  bool issued = false;
  layer.prefetched = true;
  for (const TensorId input : layer.inputs) {
    if (context.Where(input) != Residency::kOutside) continue;
    if (context.Prefetch(input)) {
      issued = true;
    } else {
      layer.prefetched = false;
    }
  }
  return issued;
}

}  // namespace spillway::policies
