#include "traces/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/core/error.h"

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
    default:
      return fmt::format("elements={}", attribute("elements"));
  }
}

// Lowers one network; the tensors of a node are created as its ops are.
class Lowering {
 public:
  Lowering(const Network& network, const LoweringOptions& options, const Preset& preset)
      : network_(network), preset_(preset), nodes_(boost::num_vertices(network.graph())) {
    trace_.network = network.name();
    trace_.batch = options.batch;
    trace_.name = fmt::format("{}:{}", network.name(), options.batch);
    trace_.preset = preset.name;
    trace_.training = options.training;
  }

  Trace Run() {
    for (LayerNode node = 0; node < nodes_.size(); ++node) Forward(node);
    if (trace_.training) {
      for (LayerNode node = nodes_.size(); node-- > 1;) Backward(node);
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
  // What has been created for a layer so far.
  struct NodeTensors {
    TensorId output{};
    std::optional<TensorId> gradient;  // of the output
    bool gradient_written = false;
    std::vector<Parameter> parameters;
  };

  const LayerSpec& layer(LayerNode node) const { return network_.layer(node); }

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

  Op MakeOp(LayerNode node, Phase phase, std::string_view suffix) const {
    Op op;
    op.name = fmt::format("{}.{}", layer(node).name, suffix);
    op.layer = static_cast<LayerId>(node);
    op.type = layer(node).type;
    op.phase = phase;
    op.batch = trace_.batch;
    op.attributes = layer(node).attributes;
    op.recomputable = phase == Phase::kForward;
    return op;
  }

  // Appends a slot. `traffic` starts as every operand once.
  void AddSlot(Op& op, std::string_view name, int64_t flops, std::string_view detail = "") {
    Bytes traffic;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) traffic += trace_.tensor(id).size;
    }
    const std::string signature =
        fmt::format("{}.{} {}{}", Name(op.type), name, Geometry(op), detail);
    op.slots.push_back({std::string(name), signature, flops, traffic});
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
      default:
        return elements;
    }
  }

  // True if the layer may overwrite its only input: nothing else reads it, and it is no image.
  bool RunsInPlace(LayerNode node) const {
    const OpType type = layer(node).type;
    const bool wanted = (type == OpType::kRelu && preset_.relu_in_place) ||
                        (type == OpType::kSoftmaxLoss && preset_.softmax_in_place);
    const LayerNode input = network_.Inputs(node).front();
    return wanted && layer(input).type != OpType::kInput &&
           boost::out_degree(input, network_.graph()) == 1;
  }

  void Forward(LayerNode node) {
    const LayerSpec& spec = layer(node);
    trace_.layers.push_back({spec.name, spec.type});
    if (spec.type == OpType::kInput) {
      nodes_[node].output =
          AddTensor(spec.name + ".y", TensorKind::kInput, ActivationShape(spec.output));
      return;
    }
    Op op = MakeOp(node, Phase::kForward, "fwd");
    for (const LayerNode input : network_.Inputs(node)) op.inputs.push_back(nodes_[input].output);
    AddParameters(node);
    for (const Parameter& parameter : nodes_[node].parameters) op.inputs.push_back(parameter.value);

    std::optional<TensorId> alias;
    if (RunsInPlace(node)) alias = op.inputs.front();
    nodes_[node].output =
        AddTensor(spec.name + ".y", TensorKind::kActivation, ActivationShape(spec.output), alias);
    op.outputs = {nodes_[node].output};
    if (spec.type == OpType::kSoftmaxLoss) {
      labels_ = AddTensor("labels", TensorKind::kInput, {trace_.batch});
      op.inputs.push_back(*labels_);
      op.outputs.push_back(AddTensor("loss", TensorKind::kActivation, {1}));
    }
    AddSlot(op, "fwd", trace_.batch * FlopsPerSample(node));
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

  // The gradient of the node's output; created at the first call, sharing `alias_of` if given.
  TensorId OutputGradient(LayerNode node, std::optional<TensorId> alias_of = std::nullopt) {
    NodeTensors& tensors = nodes_[node];
    if (!tensors.gradient) {
      tensors.gradient = AddTensor(layer(node).name + ".dy", TensorKind::kGradient,
                                   ActivationShape(layer(node).output), alias_of);
    }
    return *tensors.gradient;
  }

  void Backward(LayerNode node) {
    const LayerSpec& spec = layer(node);
    const std::vector<LayerNode> inputs = network_.Inputs(node);
    Op op = MakeOp(node, Phase::kBackward, "bwd");
    AddSavedOperands(node, inputs.front(), op);
    if (spec.type != OpType::kSoftmaxLoss) op.inputs.push_back(OutputGradient(node));

    // Gradients of the inputs; those that an earlier backward op has begun are added to.
    int64_t accumulate = 0;
    bool needs_dx = false;
    std::vector<TensorId> added_to;
    for (const LayerNode input : inputs) {
      if (layer(input).type == OpType::kInput) continue;
      needs_dx = true;
      std::optional<TensorId> alias;
      if (spec.type == OpType::kRelu && RunsInPlace(node)) alias = nodes_[node].gradient;
      const TensorId gradient = OutputGradient(input, alias);
      if (nodes_[input].gradient_written) {
        accumulate |= int64_t{1} << op.outputs.size();
        added_to.push_back(gradient);
      }
      nodes_[input].gradient_written = true;
      op.outputs.push_back(gradient);
    }
    AddParameterGradients(node, op);
    op.inputs.insert(op.inputs.end(), added_to.begin(), added_to.end());
    op.attributes.push_back({"needs_dx", needs_dx ? 1.0 : 0.0});
    op.attributes.push_back({"accumulate", static_cast<double>(accumulate)});
    AddBackwardSlots(node, needs_dx, op);
    trace_.ops.push_back(std::move(op));
  }

  // What backward reads besides gradients, in the operand order of FORMAT.md.
  void AddSavedOperands(LayerNode node, LayerNode input, Op& op) const {
    switch (layer(node).type) {
      case OpType::kConv2d:
      case OpType::kLinear:
        op.inputs = {nodes_[input].output, nodes_[node].parameters.front().value};
        break;
      case OpType::kMaxPool2d:
        op.inputs = {nodes_[input].output, nodes_[node].output};
        break;
      case OpType::kRelu:
        op.inputs = {nodes_[node].output};
        break;
      case OpType::kSoftmaxLoss:
        op.inputs = {nodes_[node].output, *labels_};
        break;
      default:
        break;
    }
  }

  void AddParameterGradients(LayerNode node, Op& op) {
    std::vector<Parameter>& parameters = nodes_[node].parameters;
    if (parameters.empty()) return;
    const bool fused = preset_.update == Update::kFused;
    op.attributes.push_back({"fused_update", fused ? 1.0 : 0.0});
    if (fused) {
      op.attributes.push_back({"learning_rate", kLearningRate});
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (i > 0) op.inputs.push_back(parameters[i].value);
        op.outputs.push_back(parameters[i].value);
      }
      return;
    }
    for (Parameter& parameter : parameters) {
      parameter.gradient =
          AddTensor(fmt::format("{}.d{}", layer(node).name, parameter.suffix),
                    TensorKind::kParameterGradient, trace_.tensor(parameter.value).shape);
      op.outputs.push_back(*parameter.gradient);
    }
  }

  void AddBackwardSlots(LayerNode node, bool needs_dx, Op& op) {
    const int64_t flops = trace_.batch * FlopsPerSample(node);
    switch (layer(node).type) {
      case OpType::kConv2d:
        if (needs_dx) AddSlot(op, "bwd_data", flops);
        AddSlot(op, "bwd_filter", flops);
        break;
      case OpType::kLinear:
        AddSlot(op, "bwd", needs_dx ? 2 * flops : flops,
                fmt::format(" dx={} fused={}", needs_dx ? 1 : 0,
                            preset_.update == Update::kFused ? 1 : 0));
        break;
      default:
        AddSlot(op, "bwd", flops);
    }
  }

  void UpdateParameters(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    if (tensors.parameters.empty()) return;
    Op op = MakeOp(node, Phase::kUpdate, "update");
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
  Trace trace_;
  std::vector<NodeTensors> nodes_;
  std::optional<TensorId> labels_;
};

// FFT workspace of one convolution; 0 where the algorithm does not apply or is not counted.
Bytes FftWorkspace(const Op& op) {
  const int64_t kernel = op.IntAttribute("kernel_h");
  const auto plane = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(op.IntAttribute("in_height") + kernel - 1)));
  if (op.IntAttribute("stride_h") != 1 || plane > 128) return Bytes(0);
  const int64_t c = op.IntAttribute("in_channels") / op.IntAttribute("groups");
  const int64_t k = op.IntAttribute("out_channels") / op.IntAttribute("groups");
  const int64_t n = op.batch;
  const int64_t plane_bytes = plane * (plane / 2 + 1) * 8;
  if (op.phase == Phase::kForward) return Bytes((c * n + k * n + c * k) * plane_bytes);
  if (kernel <= 3) return Bytes(0);
  return Bytes(2 * (k * n + c * k) * plane_bytes +
               kElementSize * c * k * kernel * op.IntAttribute("kernel_w"));
}

}  // namespace

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets{
      {.name = "torch",
       .description =
           "a modern framework: ReLU in place, gradients of parameters kept until an SGD "
           "step with momentum after backward",
       .counting = {"MiB", Bytes::MiB(1)}},
      {.name = "vdnn",
       .description =
           "vDNN's memory manager and its baseline: ReLU and softmax in place, parameters "
           "updated inside backward (plain SGD); a GB is 1000 MiB",
       .softmax_in_place = true,
       .update = Update::kFused,
       .counting = {"GB", Bytes::MiB(1000), false, true}},
  };
  return presets;
}

const Preset& FindPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  throw UsageError(UnknownName("preset", name, names));
}

Trace LowerNetwork(const Network& network, const LoweringOptions& options) {
  return Lowering(network, options, FindPreset(options.preset)).Run();
}

Bytes FftBaselineWorkspace(const Trace& trace) {
  Bytes largest;
  for (const Op& op : trace.ops) {
    if (op.type == OpType::kConv2d) largest = std::max(largest, FftWorkspace(op));
  }
  return largest;
}

}  // namespace spillway
