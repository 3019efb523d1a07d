#include "traces/lowering/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "traces/base/error.h"
#include "traces/lowering/in_place.h"

namespace spillway {
namespace {

constexpr int64_t kElementSize = 4;  // fp32
constexpr double kLearningRate = 0.01;
constexpr double kMomentum = 0.9;
constexpr double kWeightDecay = 5e-4;

int64_t Product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The geometry part of a signature, for example "in=3x224x224 out=64x224x224 kernel=3x3 ...".
std::string Geometry(const Op& op) {
  const auto attribute = [&](std::string_view name) { return op.IntAttribute(name); };
  switch (op.type) {
    case OpType::kConv2d:
      return fmt::format(
          "in={}x{}x{} out={}x{}x{} kernel={}x{} stride={}x{} pad={}x{} groups={} "
          "bias={}",
          attribute("in_channels"), attribute("in_height"), attribute("in_width"),
          attribute("out_channels"), attribute("out_height"), attribute("out_width"),
          attribute("kernel_h"), attribute("kernel_w"), attribute("stride_h"),
          attribute("stride_w"), attribute("pad_h"), attribute("pad_w"), attribute("groups"),
          attribute("bias"));
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
      return fmt::format("in={}x{}x{} out={}x{}x{} kernel={}x{} stride={}x{} pad={}x{}",
                         attribute("channels"), attribute("in_height"), attribute("in_width"),
                         attribute("channels"), attribute("out_height"), attribute("out_width"),
                         attribute("kernel_h"), attribute("kernel_w"), attribute("stride_h"),
                         attribute("stride_w"), attribute("pad_h"), attribute("pad_w"));
    case OpType::kLinear:
      return fmt::format("in={} out={} bias={}", attribute("in_features"),
                         attribute("out_features"), attribute("bias"));
    case OpType::kConcat: {
      std::string text =
          fmt::format("plane={}x{} channels=", attribute("height"), attribute("width"));
      for (int64_t i = 0; i < attribute("parts"); ++i) {
        text += fmt::format("{}{}", i == 0 ? "" : "+", attribute(fmt::format("channels_{}", i)));
      }
      return text;
    }
    case OpType::kBatchNorm:
      return fmt::format("in={}x{}x{}", attribute("channels"), attribute("height"),
                         attribute("width"));
    case OpType::kLrn:
      return fmt::format("in={}x{}x{} size={}", attribute("channels"), attribute("height"),
                         attribute("width"), attribute("size"));
    case OpType::kFork:
      return fmt::format("elements={} parts={}", attribute("elements"), attribute("parts"));
    default:
      return fmt::format("elements={}", attribute("elements"));
  }
}

// Whether the backward step can hold the layer's output without reading it.
bool MayHoldOutput(OpType type) {
  return type == OpType::kConv2d || type == OpType::kLinear || type == OpType::kAvgPool2d;
}

// The channels that a local response normalisation looks at.
int64_t WindowOf(const LayerSpec& lrn) {
  const auto size = std::find_if(lrn.attributes.begin(), lrn.attributes.end(),
                                 [](const Attribute& a) { return a.name == "size"; });
  return size == lrn.attributes.end() ? 1 : static_cast<int64_t>(size->value);
}

// Lowers one network; the tensors of a node are created as its ops are.
class Lowering {
 public:
  Lowering(const Network& network, const LoweringOptions& options, const Preset& preset)
      : network_(network),
        preset_(preset),
        in_place_(network, preset, options.training),
        nodes_(boost::num_vertices(network.graph())) {
    trace_.network = network.name();
    trace_.batch = options.batch;
    trace_.name = fmt::format("{}:{}", network.name(), options.batch);
    trace_.preset = preset.name;
    trace_.training = options.training;
  }

  Trace Run() {
    for (LayerNode node = 0; node < nodes_.size(); ++node) {
      Forward(node);
      if (in_place_.IsForked(node)) Fork(node);
    }
    if (trace_.training) {
      for (LayerNode node = nodes_.size(); node-- > 1;) {
        if (in_place_.IsForked(node)) JoinGradients(node);
        Backward(node);
      }
      if (preset_.update == Update::kSeparate) {
        for (LayerNode node = 1; node < nodes_.size(); ++node) UpdateParameters(node);
      }
    }
    trace_.Validate();
    return std::move(trace_);
  }

 private:
  struct Parameter {
    std::string suffix;  // "weight", "bias"
    TensorId value{};
    std::optional<TensorId> gradient;
  };
  // An activation as its consumers see it: a layer's output, or a copy of it.
  struct Value {
    TensorId tensor{};
    std::string gradient_name;
    std::optional<TensorId> gradient;
    bool gradient_written = false;
  };
  using ValueId = size_t;
  // What has been created for a layer so far.
  struct NodeTensors {
    LayerId layer{};
    std::vector<ValueId> inputs;
    ValueId output = 0;
    std::vector<Parameter> parameters;
    std::vector<TensorId> statistics;  // batchnorm: mean, inv_std, running_mean, running_var
    LayerId fork{};
    std::vector<ValueId> copies;  // one for each consumer, if the output is forked
    size_t taken = 0;             // of the copies
  };

  const LayerSpec& layer(LayerNode node) const { return network_.layer(node); }
  size_t ConsumerCount(LayerNode node) const { return boost::out_degree(node, network_.graph()); }
  const Value& InputValue(LayerNode node, size_t i) const {
    return values_[nodes_[node].inputs[i]];
  }

  std::vector<int64_t> ActivationShape(const Shape& shape) const {
    if (shape.height == 1 && shape.width == 1) return {trace_.batch, shape.channels};
    return {trace_.batch, shape.channels, shape.height, shape.width};
  }

  TensorId AddTensor(std::string name, TensorKind kind, std::vector<int64_t> shape,
                     std::optional<TensorId> alias_of = std::nullopt) {
    const Bytes size(Product(shape) * kElementSize);
    trace_.tensors.push_back({std::move(name), kind, std::move(shape), size, alias_of});
    return static_cast<TensorId>(trace_.tensors.size() - 1);
  }

  ValueId AddValue(TensorId tensor, std::string gradient_name) {
    values_.push_back({tensor, std::move(gradient_name), std::nullopt, false});
    return values_.size() - 1;
  }

  LayerId AddLayer(std::string name, OpType type) {
    trace_.layers.push_back({std::move(name), type});
    return static_cast<LayerId>(trace_.layers.size() - 1);
  }

  Op MakeOp(LayerId layer, Phase phase, std::string_view suffix,
            std::vector<Attribute> attributes) const {
    Op op;
    op.name = fmt::format("{}.{}", trace_.layer(layer).name, suffix);
    op.layer = layer;
    op.type = trace_.layer(layer).type;
    op.phase = phase;
    op.batch = trace_.batch;
    op.attributes = std::move(attributes);
    op.recomputable = phase == Phase::kForward;
    return op;
  }

  // Every operand once.
  Bytes OperandTraffic(const Op& op) const {
    Bytes traffic;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) traffic += trace_.tensor(id).size;
    }
    return traffic;
  }

  void AddSlot(Op& op, std::string_view name, int64_t flops, std::string_view detail = "") {
    const std::string signature =
        fmt::format("{}.{} {}{}", Name(op.type), name, Geometry(op), detail);
    op.slots.push_back({std::string(name), signature, flops, OperandTraffic(op)});
  }

  // A slot that only copies inputs[0] to the outputs; those that share its storage cost nothing.
  void AddCopySlot(Op& op, std::string_view name) {
    const Bytes size = trace_.tensor(op.inputs.front()).size;
    int64_t copies = 0;
    for (const TensorId output : op.outputs) {
      copies += trace_.Root(output) == trace_.Root(op.inputs.front()) ? 0 : 1;
    }
    AddSlot(op, name, 0, fmt::format(" copies={}", copies));
    const auto added_to = static_cast<int64_t>(op.inputs.size()) - 1;
    op.slots.back().traffic = copies == 0 ? Bytes(0) : size * (1 + copies + added_to);
  }

  // Operations of one pass over the layer's data, for one sample.
  int64_t FlopsPerSample(LayerNode node) const {
    const LayerSpec& spec = layer(node);
    const int64_t elements = spec.output.elements();
    switch (spec.type) {
      case OpType::kConv2d:
        return 2 * elements * spec.weight_shape[1] * spec.weight_shape[2] * spec.weight_shape[3];
      case OpType::kLinear:
        return 2 * elements * spec.weight_shape[1];
      case OpType::kConcat:
        return 0;
      case OpType::kBatchNorm:
        return 8 * elements;  // sums of x and x^2, then a product and a sum; backward is alike
      case OpType::kLrn:
        return elements * (2 * WindowOf(spec) + 4);
      default:
        return elements;
    }
  }

  // Parameters are updated inside the backward ops.
  bool IsFused() const { return preset_.update != Update::kSeparate; }

  // --- Forward

  // The input's output, or the next copy of it.
  ValueId Take(LayerNode input) {
    NodeTensors& tensors = nodes_[input];
    return tensors.copies.empty() ? tensors.output : tensors.copies[tensors.taken++];
  }

  void Forward(LayerNode node) {
    const LayerSpec& spec = layer(node);
    NodeTensors& tensors = nodes_[node];
    tensors.layer = AddLayer(spec.name, spec.type);
    if (spec.type == OpType::kInput) {
      tensors.output =
          AddValue(AddTensor(spec.name + ".y", TensorKind::kInput, ActivationShape(spec.output)),
                   spec.name + ".dy");
      return;
    }
    for (const LayerNode input : network_.Inputs(node)) tensors.inputs.push_back(Take(input));
    if (in_place_.IsPassedThrough(node)) {
      tensors.output = tensors.inputs.front();
      return;
    }
    Op op = MakeOp(tensors.layer, Phase::kForward, "fwd", spec.attributes);
    for (const ValueId input : tensors.inputs) op.inputs.push_back(values_[input].tensor);
    AddParameters(node);
    for (const Parameter& parameter : tensors.parameters) op.inputs.push_back(parameter.value);

    std::optional<TensorId> alias;
    if (const auto overwritten = in_place_.OverwrittenInput(node)) alias = op.inputs[*overwritten];
    const TensorId y =
        AddTensor(spec.name + ".y", TensorKind::kActivation, ActivationShape(spec.output), alias);
    tensors.output = AddValue(y, spec.name + ".dy");
    op.outputs = {y};
    std::string detail;
    if (spec.type == OpType::kSoftmaxLoss) {
      labels_ = AddTensor("labels", TensorKind::kInput, {trace_.batch});
      op.inputs.push_back(*labels_);
      op.outputs.push_back(AddTensor("loss", TensorKind::kActivation, {1}));
    } else if (spec.type == OpType::kBatchNorm) {
      AddStatistics(node, op);
      detail = fmt::format(" training={}", trace_.training ? 1 : 0);
    }
    AddSlot(op, "fwd", trace_.batch * FlopsPerSample(node), detail);
    trace_.ops.push_back(std::move(op));
  }

  void AddParameters(LayerNode node) {
    const LayerSpec& spec = layer(node);
    const auto add = [&](const char* suffix, std::vector<int64_t> shape) {
      const TensorId id = AddTensor(fmt::format("{}.{}", spec.name, suffix), TensorKind::kParameter,
                                    std::move(shape));
      nodes_[node].parameters.push_back({suffix, id, std::nullopt});
    };
    if (!spec.weight_shape.empty()) add("weight", spec.weight_shape);
    if (spec.bias_elements > 0) add("bias", {spec.bias_elements});
  }

  // The statistics of a batch normalisation: forward writes the first two in training and reads the
  // last two in inference.
  void AddStatistics(LayerNode node, Op& forward) {
    std::vector<TensorId>& statistics = nodes_[node].statistics;
    const auto add = [&](const char* suffix, TensorKind kind) {
      statistics.push_back(AddTensor(fmt::format("{}.{}", layer(node).name, suffix), kind,
                                     {layer(node).output.channels}));
    };
    if (trace_.training) {
      add("mean", TensorKind::kActivation);
      add("inv_std", TensorKind::kActivation);
      forward.outputs.insert(forward.outputs.end(), statistics.begin(), statistics.end());
    }
    add("running_mean", TensorKind::kOptimizerState);
    add("running_var", TensorKind::kOptimizerState);
    if (!trace_.training) {
      forward.inputs.insert(forward.inputs.end(), statistics.begin(), statistics.end());
    }
    forward.attributes.push_back({"training", trace_.training ? 1.0 : 0.0});
  }

  // --- Forks

  std::vector<Attribute> ForkAttributes(LayerNode node) const {
    return {{"elements", static_cast<double>(layer(node).output.elements())},
            {"parts", static_cast<double>(ConsumerCount(node))}};
  }

  void Fork(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    const std::string name = layer(node).name + ".fork";
    tensors.fork = AddLayer(name, OpType::kFork);
    Op op = MakeOp(tensors.fork, Phase::kForward, "fwd", ForkAttributes(node));
    op.inputs = {values_[tensors.output].tensor};
    for (size_t i = 0; i < ConsumerCount(node); ++i) {
      std::optional<TensorId> alias;
      if (i == 0 && preset_.forks == Forks::kShareOne) alias = op.inputs.front();
      op.outputs.push_back(AddTensor(fmt::format("{}.y{}", name, i + 1), TensorKind::kActivation,
                                     ActivationShape(layer(node).output), alias));
      tensors.copies.push_back(AddValue(op.outputs.back(), fmt::format("{}.dy{}", name, i + 1)));
    }
    AddCopySlot(op, "fwd");
    trace_.ops.push_back(std::move(op));
  }

  void JoinGradients(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    Op op = MakeOp(tensors.fork, Phase::kBackward, "bwd", ForkAttributes(node));
    for (const ValueId copy : tensors.copies) op.inputs.push_back(Gradient(copy));
    std::optional<TensorId> alias;
    if (preset_.forks == Forks::kShareOne) alias = op.inputs.front();
    op.outputs = {Gradient(tensors.output, alias)};
    values_[tensors.output].gradient_written = true;
    op.attributes.push_back({"needs_dx", 1});
    op.attributes.push_back({"accumulate", 0});
    const int64_t elements = trace_.batch * layer(node).output.elements();
    AddSlot(op, "bwd", elements * static_cast<int64_t>(tensors.copies.size() - 1));
    trace_.ops.push_back(std::move(op));
  }

  // --- Backward

  // The gradient of a value; created at the first call, sharing `alias_of` if given.
  TensorId Gradient(ValueId id, std::optional<TensorId> alias_of = std::nullopt) {
    Value& value = values_[id];
    if (!value.gradient) {
      value.gradient = AddTensor(value.gradient_name, TensorKind::kGradient,
                                 trace_.tensor(value.tensor).shape, alias_of);
    }
    return *value.gradient;
  }

  void Backward(LayerNode node) {
    const LayerSpec& spec = layer(node);
    const NodeTensors& tensors = nodes_[node];
    const std::vector<LayerNode> inputs = network_.Inputs(node);
    Op op = MakeOp(tensors.layer, Phase::kBackward, "bwd", spec.attributes);
    AddSavedOperands(node, op);
    if (spec.type != OpType::kSoftmaxLoss) op.inputs.push_back(Gradient(tensors.output));
    if (spec.type == OpType::kBatchNorm) {
      op.inputs.insert(op.inputs.end(), tensors.statistics.begin(), tensors.statistics.end());
    }

    // Gradients of the inputs; those that an earlier backward op has begun are added to.
    int64_t accumulate = 0;
    bool needs_dx = false;
    std::vector<TensorId> added_to;
    std::vector<bool> begun;
    for (const ValueId input : tensors.inputs) begun.push_back(values_[input].gradient_written);
    const std::vector<bool> shared = in_place_.SharedGradients(node, begun);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (layer(inputs[i]).type == OpType::kInput && !preset_.image_gradient) continue;
      needs_dx = true;
      Value& value = values_[tensors.inputs[i]];
      std::optional<TensorId> alias;
      if (shared[i]) alias = IncomingGradient(node);
      const TensorId gradient = Gradient(tensors.inputs[i], alias);
      if (value.gradient_written) {
        accumulate |= int64_t{1} << op.outputs.size();
        added_to.push_back(gradient);
      }
      value.gradient_written = true;
      op.outputs.push_back(gradient);
    }
    AddParameterGradients(node, op);
    if (spec.type == OpType::kBatchNorm) {  // the running statistics move on
      op.outputs.insert(op.outputs.end(), tensors.statistics.end() - 2, tensors.statistics.end());
    }
    op.inputs.insert(op.inputs.end(), added_to.begin(), added_to.end());
    op.attributes.push_back({"needs_dx", needs_dx ? 1.0 : 0.0});
    op.attributes.push_back({"accumulate", static_cast<double>(accumulate)});
    AddBackwardSlots(node, needs_dx, op);
    // Held, not read: no traffic.
    const bool pools = spec.type == OpType::kAvgPool2d;
    if (preset_.holds_operands && (pools || spec.type == OpType::kRelu)) {
      op.inputs.push_back(InputValue(node, 0).tensor);
      op.attributes.push_back({"holds_x", 1});
    }
    if ((preset_.holds_outputs && MayHoldOutput(spec.type)) || (preset_.holds_operands && pools)) {
      op.inputs.push_back(values_[tensors.output].tensor);
      op.attributes.push_back({"holds_y", 1});
    }
    trace_.ops.push_back(std::move(op));
  }

  // What backward begins with: the gradient of the output, for the loss the probabilities.
  std::optional<TensorId> IncomingGradient(LayerNode node) const {
    const Value& output = values_[nodes_[node].output];
    return layer(node).type == OpType::kSoftmaxLoss ? output.tensor : output.gradient;
  }

  // What backward reads before the gradient, in the operand order of FORMAT.md.
  void AddSavedOperands(LayerNode node, Op& op) const {
    const NodeTensors& tensors = nodes_[node];
    const TensorId x = InputValue(node, 0).tensor;
    const TensorId y = values_[tensors.output].tensor;
    switch (layer(node).type) {
      case OpType::kConv2d:
      case OpType::kLinear:
      case OpType::kBatchNorm:
        op.inputs = {x, tensors.parameters.front().value};
        break;
      case OpType::kMaxPool2d:
      case OpType::kLrn:
        op.inputs = {x, y};
        break;
      case OpType::kRelu:
        op.inputs = {y};
        break;
      case OpType::kSoftmaxLoss:
        op.inputs = {y, *labels_};
        break;
      default:
        break;
    }
  }

  void AddParameterGradients(LayerNode node, Op& op) {
    std::vector<Parameter>& parameters = nodes_[node].parameters;
    if (parameters.empty()) return;
    const bool fused = IsFused();
    op.attributes.push_back({"fused_update", fused ? 1.0 : 0.0});
    if (fused) {
      op.attributes.push_back({"learning_rate", kLearningRate});
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (i > 0) op.inputs.push_back(parameters[i].value);
        op.outputs.push_back(parameters[i].value);
      }
      if (preset_.update == Update::kFused) return;
    }
    for (Parameter& parameter : parameters) {
      parameter.gradient = AddTensor(fmt::format("{}.d{}", layer(node).name, parameter.suffix),
                                     fused ? TensorKind::kScratch : TensorKind::kParameterGradient,
                                     trace_.tensor(parameter.value).shape);
      (fused ? op.scratch : op.outputs).push_back(*parameter.gradient);
    }
  }

  void AddBackwardSlots(LayerNode node, bool needs_dx, Op& op) {
    const int64_t flops = trace_.batch * FlopsPerSample(node);
    const std::string detail = fmt::format(" dx={} fused={}", needs_dx ? 1 : 0, IsFused() ? 1 : 0);
    switch (layer(node).type) {
      case OpType::kConv2d:
        if (needs_dx) AddSlot(op, "bwd_data", flops);
        AddSlot(op, "bwd_filter", flops);
        break;
      case OpType::kLinear:
        AddSlot(op, "bwd", needs_dx ? 2 * flops : flops, detail);
        break;
      case OpType::kBatchNorm:
        AddSlot(op, "bwd", flops, detail);
        break;
      case OpType::kAdd:
        AddCopySlot(op, "bwd");
        break;
      default:
        AddSlot(op, "bwd", flops);
    }
  }

  void UpdateParameters(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    if (tensors.parameters.empty()) return;
    Op op = MakeOp(tensors.layer, Phase::kUpdate, "update", {});
    op.type = OpType::kSgd;
    op.batch = 1;
    int64_t elements = 0;
    for (const Parameter& parameter : tensors.parameters) {
      const std::vector<int64_t> shape = trace_.tensor(parameter.value).shape;
      const TensorId momentum =
          AddTensor(fmt::format("{}.{}_momentum", layer(node).name, parameter.suffix),
                    TensorKind::kOptimizerState, shape);
      op.inputs.insert(op.inputs.end(), {parameter.value, *parameter.gradient, momentum});
      op.outputs.insert(op.outputs.end(), {parameter.value, momentum});
      elements += Product(shape);
    }
    op.attributes = {{"elements", static_cast<double>(elements)},
                     {"learning_rate", kLearningRate},
                     {"momentum", kMomentum},
                     {"weight_decay", kWeightDecay}};
    AddSlot(op, "update", 4 * elements);
    trace_.ops.push_back(std::move(op));
  }

  const Network& network_;
  const Preset& preset_;
  const InPlaceRules in_place_;
  Trace trace_;
  std::vector<NodeTensors> nodes_;
  std::vector<Value> values_;
  std::optional<TensorId> labels_;
};

// FFT workspace of one convolution; 0 where the algorithm does not apply or is not counted.
Bytes FftWorkspace(const Op& op) {
  const int64_t rows = op.IntAttribute("kernel_h");
  const int64_t columns = op.IntAttribute("kernel_w");
  const auto plane = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(
      std::max(op.IntAttribute("in_height") + rows, op.IntAttribute("in_width") + columns) - 1)));
  if (op.IntAttribute("stride_h") != 1 || plane > 128) return Bytes(0);
  const int64_t c = op.IntAttribute("in_channels") / op.IntAttribute("groups");
  const int64_t k = op.IntAttribute("out_channels") / op.IntAttribute("groups");
  const int64_t n = op.batch;
  const int64_t plane_bytes = plane * (plane / 2 + 1) * 8;
  if (op.phase == Phase::kForward) return Bytes((c * n + k * n + c * k) * plane_bytes);
  if (std::max(rows, columns) <= 3) return Bytes(0);
  return Bytes(2 * (k * n + c * k) * plane_bytes + kElementSize * c * k * rows * columns);
}

}  // namespace

Trace LowerNetwork(const Network& network, const LoweringOptions& options) {
  return LowerNetwork(network, options, FindPreset(options.preset));
}

Trace LowerNetwork(const Network& network, const LoweringOptions& options, const Preset& preset) {
  if (preset.order == Order::kConstruction) return Lowering(network, options, preset).Run();
  const Network ordered = network.InOrder(ExecutionOrder(network, preset.order));
  return Lowering(ordered, options, preset).Run();
}

Bytes FftBaselineWorkspace(const Trace& trace) {
  Bytes largest;
  for (const Op& op : trace.ops) {
    if (op.type == OpType::kConv2d) largest = std::max(largest, FftWorkspace(op));
  }
  return largest;
}

}  // namespace spillway
