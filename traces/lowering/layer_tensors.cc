#include "traces/lowering/layer_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spillway::traces {
namespace {

TensorKind KindOf(Role role) {
  switch (role) {
    case Role::kWeight:
    case Role::kBias:
      return TensorKind::kParameter;
    case Role::kRunningMean:
    case Role::kRunningVar:
      return TensorKind::kOptimizerState;
    case Role::kLabels:
      return TensorKind::kInput;
    default:
      return TensorKind::kActivation;
  }
}

}  // namespace

void LayerTensors::Restart(LayerNode node, std::string_view suffix) {
  LayerExecution begun;
  begun.spec = network_.layer(node);
  begun.spec.name += suffix;
  begun.first = at(node).first;
  for (const Role role : {Role::kWeight, Role::kDweight, Role::kBias, Role::kDbias,
                          Role::kRunningMean, Role::kRunningVar}) {
    begun.tensors[Index(role)] = at(node).tensors[Index(role)];
  }
  at(node) = std::move(begun);
}

std::vector<int64_t> LayerTensors::OutputShape(LayerNode node) const {
  const LayerSpec& spec = at(node).spec;
  const Shape shape = spec.output;
  if (spec.dtype == DataType::kInt32) return {batch_, shape.length};
  if (shape.length > 0) return {batch_, shape.length, shape.channels};
  if (shape.height == 1 && shape.width == 1) return {batch_, shape.channels};
  return {batch_, shape.channels, shape.height, shape.width};
}

DataType LayerTensors::OutputType(LayerNode node) const {
  const LayerSpec& spec = at(node).spec;
  if (spec.dtype != DataType::kFloat32) return spec.dtype;
  const bool is_short = arithmetic_ == Arithmetic::kBf16 && !RowOf(spec.type).stays_fp32;
  return is_short ? DataType::kBfloat16 : DataType::kFloat32;
}

ValueId LayerTensors::AddValue(TensorId tensor, std::string gradient_name) {
  values_.push_back({tensor, std::move(gradient_name), std::nullopt, false});
  return values_.size() - 1;
}

ValueId LayerTensors::Take(LayerNode input) {
  LayerExecution& execution = at(input);
  return execution.copies.empty() ? execution.output : execution.copies[execution.taken++];
}

TensorId LayerTensors::Gradient(ValueId id, std::optional<TensorId> alias_of) {
  Value& value = values_[id];
  if (!value.gradient) {
    const Tensor& of = trace_.tensor(value.tensor);
    value.gradient =
        trace_.AddTensor(value.gradient_name, TensorKind::kGradient, of.shape, of.dtype, alias_of);
  }
  return *value.gradient;
}

std::vector<int64_t> LayerTensors::ShapeOf(const LayerSpec& spec, Role role) const {
  if (role == Role::kWeight) return spec.weight_shape;
  if (role == Role::kBias) return {spec.bias_elements};
  if (role == Role::kLoss) return {1};
  if (role == Role::kLogSumExp) {
    const auto heads = std::ranges::find(spec.attributes, "heads", &Attribute::name);
    return {batch_, static_cast<int64_t>(heads->value), spec.output.length};
  }
  if (std::ranges::count(spec.attributes, "rows", &Attribute::name) != 0) {
    return {batch_, spec.output.positions()};
  }
  if (role == Role::kLabels) return {batch_};
  return {spec.output.channels};
}

TensorId LayerTensors::Own(LayerNode node, Role role) {
  const LayerSpec& spec = at(node).spec;
  std::optional<TensorId>& tensor = at(node).tensors[Index(role)];
  if (!tensor && role == Role::kWeight && spec.tied) tensor = Own(*spec.tied, role);
  if (tensor) return *tensor;
  const std::string name(Name(role));
  const TensorKind kind = KindOf(role);
  if (role == Role::kLabels) {
    tensor = trace_.AddInput(name, SuffixOf(node), ShapeOf(spec, role), DataType::kFloat32);
  } else if (role == Role::kLoss) {
    tensor = trace_.AddTensor(name + SuffixOf(node), kind, ShapeOf(spec, role), DataType::kFloat32);
  } else {
    const bool lasts = kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
    tensor = trace_.AddTensor(
        fmt::format("{}.{}", lasts ? NameOf(node) : spec.name, name), kind, ShapeOf(spec, role),
        kind == TensorKind::kParameter ? OutputType(node) : DataType::kFloat32);
  }
  return *tensor;
}

void LayerTensors::OwnState(LayerNode node, const OperandList& list) {
  for (const Operand& operand : list.span()) {
    if (KindOf(operand.role) == TensorKind::kOptimizerState) Own(node, operand.role);
  }
}

void LayerTensors::AddOperands(LayerNode node, const Op& op, const OperandList& list,
                               std::vector<TensorId>& to) {
  const LayerExecution& execution = at(node);
  const auto input = [&](size_t i) { return value(execution.inputs[i]).tensor; };
  constexpr std::array kInputs{Role::kX, Role::kX2, Role::kX3};
  constexpr std::array kInputGradients{Role::kDx, Role::kDx2, Role::kDx3};
  for (const Operand& operand : list.span()) {
    const bool written = std::ranges::count(kInputGradients, operand.role) != 0;
    if (written || !Holds(op, operand.when)) continue;
    const auto* const x = std::ranges::find(kInputs, operand.role);
    if (operand.role == Role::kX && list.repeats) {
      for (const ValueId id : execution.inputs) to.push_back(value(id).tensor);
    } else if (x != kInputs.end()) {
      to.push_back(input(static_cast<size_t>(x - kInputs.begin())));
    } else if (operand.role == Role::kIndices) {
      to.push_back(input(0));
    } else if (operand.role == Role::kY) {
      to.push_back(value(execution.output).tensor);
    } else if (operand.role == Role::kDy) {
      to.push_back(Gradient(execution.output));
    } else {
      to.push_back(Own(node, operand.role));
    }
  }
}

}  // namespace spillway::traces
