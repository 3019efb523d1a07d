#include "traces/lowering/updates.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace spillway::traces {
namespace {

using Parameter = TrainedLayer::Parameter;

class Updates {
 public:
  Updates(OpType rule, std::optional<double> clip_norm, LoweredTrace& trace)
      : rule_(RowOf(rule)), clip_norm_(clip_norm), trace_(trace) {}

  void SumSquares(const TrainedLayer& layer) {
    for (const Parameter& parameter : layer.parameters) {
      Op op = MakeOp(
          layer, OpType::kSquareSum, fmt::format("{}.square_sum", Name(parameter.role)),
          {{"elements", ElementsOf(parameter.gradient)}, {"accumulate", square_sum_ ? 1.0 : 0.0}});
      op.inputs = {parameter.gradient};
      if (square_sum_) {
        op.inputs.push_back(*square_sum_);
      } else {
        square_sum_ = trace_.AddTensor(std::string(Name(Role::kSquareSum)),
                                       TensorKind::kParameterGradient, {1}, DataType::kFloat32);
      }
      op.outputs = {*square_sum_};
      trace_.AddOp(std::move(op));
    }
  }

  void Update(const TrainedLayer& layer) {
    if (layer.parameters.empty()) return;
    Op op = MakeOp(layer, rule_.type, "update", {});
    int64_t elements = 0;
    bool is_short = false;
    for (const Parameter& parameter : layer.parameters) {
      if (clip_norm_) Clip(layer, parameter);
      elements += trace_.Elements(parameter.tensor);
      is_short = trace_.tensor(parameter.tensor).dtype != DataType::kFloat32;
    }
    for (const AttributeInfo& info : rule_.attribute_list()) {
      const double value = info.name == "elements" ? static_cast<double>(elements)
                           : info.name == "master" ? (is_short ? 1.0 : 0.0)
                                                   : info.initial;
      op.attributes.push_back({std::string(info.name), value});
    }
    for (const Parameter& parameter : layer.parameters) AddOperands(layer, parameter, op);
    trace_.AddOp(std::move(op));
  }

 private:
  // An op of the optimizer works on parameters, so the size of the batch does not matter.
  Op MakeOp(const TrainedLayer& layer, OpType type, std::string_view suffix,
            std::vector<Attribute> attributes) const {
    Op op = trace_.MakeOp(layer.layer, Phase::kUpdate, 1, "", std::move(attributes));
    op.name = fmt::format("{}.{}", layer.name, suffix);
    op.type = type;
    return op;
  }

  double ElementsOf(TensorId id) const { return static_cast<double>(trace_.Elements(id)); }

  void Clip(const TrainedLayer& layer, const Parameter& parameter) {
    Op op = MakeOp(layer, OpType::kClip, fmt::format("{}.clip", Name(parameter.role)),
                   {{"elements", ElementsOf(parameter.gradient)}, {"max_norm", *clip_norm_}});
    op.inputs = {parameter.gradient, square_sum_.value()};
    op.outputs = {parameter.gradient};
    trace_.AddOp(std::move(op));
  }

  // Appends the operands of the update of one parameter. Creates its state.
  void AddOperands(const TrainedLayer& layer, const Parameter& parameter, Op& op) {
    const OpStep& step = rule_.update;
    std::array<std::optional<TensorId>, kRoleNames.size()> operands;
    operands[Index(Role::kParameter)] = parameter.tensor;
    operands[Index(Role::kGradient)] = parameter.gradient;
    const bool has_master = step.inputs.Has(Role::kMaster);
    for (const Operand& input : step.inputs.span()) {
      if (!Holds(op, input.when)) continue;
      std::optional<TensorId>& operand = operands[Index(input.role)];
      if (!operand) {
        const Tensor& of = trace_.tensor(parameter.tensor);
        operand = trace_.AddTensor(
            fmt::format("{}.{}_{}", layer.name, Name(parameter.role), Name(input.role)),
            TensorKind::kOptimizerState,
            input.role == Role::kStep ? std::vector<int64_t>{1} : of.shape,
            has_master ? DataType::kFloat32 : of.dtype);
      }
      op.inputs.push_back(*operand);
    }
    for (const Operand& output : step.outputs.span()) {
      if (Holds(op, output.when)) op.outputs.push_back(operands[Index(output.role)].value());
    }
  }

  const OpRow& rule_;
  const std::optional<double> clip_norm_;
  LoweredTrace& trace_;
  std::optional<TensorId> square_sum_;
};

}  // namespace

void AddUpdates(const std::vector<TrainedLayer>& layers, OpType rule,
                std::optional<double> clip_norm, LoweredTrace& trace) {
  Updates updates(rule, clip_norm, trace);
  if (clip_norm) {
    for (const TrainedLayer& layer : layers) updates.SumSquares(layer);
  }
  for (const TrainedLayer& layer : layers) updates.Update(layer);
}

}  // namespace spillway::traces
