#include "traces/lowering/in_place.h"

#include <algorithm>

namespace spillway::traces {
bool InPlaceRules::IsForked(LayerNode node) const {
  return preset_.forks != Forks::kShare && ConsumerCount(node) > 1 && type(node) != OpType::kInput;
}

bool InPlaceRules::IsPassedThrough(LayerNode node) const {
  return RowOf(type(node)).training_only && !training_;
}

bool InPlaceRules::MayBeOverwritten(LayerNode node) const {
  if (type(node) == OpType::kInput || ConsumerCount(node) != 1) return false;
  if (IsPassedThrough(node)) return MayBeOverwritten(network_.Inputs(node).front());
  return !training_ || !RowOf(type(node)).backward.inputs.Has(Role::kY);
}

std::optional<size_t> InPlaceRules::OverwrittenInput(LayerNode node) const {
  if (!preset_.HasAny(RowOf(type(node)).overwrites_x)) return std::nullopt;
  const std::vector<LayerNode> inputs = network_.Inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (MayBeOverwritten(inputs[i])) return i;
  }
  return std::nullopt;
}

bool InPlaceRules::WorksInPlaceBackward(LayerNode node) const {
  if (!preset_.HasAny(RowOf(type(node)).overwrites_dy)) return false;
  const LayerNode input = network_.Inputs(node).front();
  return ConsumerCount(input) == 1 || IsForked(input);
}

std::vector<bool> InPlaceRules::SharedGradients(LayerNode node,
                                                const std::vector<bool>& begun) const {
  std::vector<bool> shared(begun.size());
  const Rules overwrites = RowOf(type(node)).overwrites_x;
  if (overwrites == kReluInPlace) shared[0] = OverwrittenInput(node).has_value();
  if (WorksInPlaceBackward(node)) shared[0] = true;
  const bool shares = preset_.sum_shares_gradient && preset_.forks == Forks::kCopy;
  if (overwrites != kAddInPlace || !(preset_.add_in_place || shares)) return shared;
  const std::vector<LayerNode> inputs = network_.Inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    shared[i] = type(inputs[i]) != OpType::kInput && !begun[i];
  }
  const bool both = shares ? !OverwritesGradient(inputs[0]) && !OverwritesGradient(inputs[1])
                           : MayShareOneGradient(inputs);
  if (shared[0] && shared[1] && !both) shared[1] = false;
  return shared;
}

bool InPlaceRules::OverwritesGradient(LayerNode node) const {
  return !IsForked(node) && WorksInPlaceBackward(node);
}

// The later of the two layers runs backward first and reads the gradient. Until then no op may
// write the gradient: not that layer itself, and no second consumer of either layer, which would
// add to it.
bool InPlaceRules::MayShareOneGradient(const std::vector<LayerNode>& operands) const {
  const auto [earlier, later] = std::minmax(operands[0], operands[1]);
  if (earlier == later || preset_.forks != Forks::kShare || ConsumerCount(later) != 1 ||
      (RowOf(type(later)).overwrites_x & (kReluInPlace | kAddInPlace)) != 0) {
    return false;
  }
  int after = 0;  // consumers of the earlier layer whose backward runs before the later layer's
  for (const LayerNode consumer : network_.Consumers(earlier)) {
    if (consumer >= later) ++after;
  }
  return after == 1;  // only the sum
}

}  // namespace spillway::traces
