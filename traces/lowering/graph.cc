#include "traces/lowering/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

// Returns the output extent of a sliding window. Throws `InputError` if no window fits.
int64_t WindowExtent(const std::string& layer, int64_t in, int64_t kernel, int64_t stride,
                     int64_t pad, bool ceil) {
  const int64_t span = in + 2 * pad - kernel;
  if (stride < 1) throw InputError(fmt::format("layer '{}': a stride of {}", layer, stride));
  if (span < 0) {
    throw InputError(
        fmt::format("layer '{}': a window of {} does not fit an extent of {} with "
                    "padding {}",
                    layer, kernel, in, pad));
  }
  int64_t out = (ceil ? span + stride - 1 : span) / stride + 1;
  // A window that starts in the padding beyond the input would see no element.
  if (ceil && (out - 1) * stride >= in + pad) --out;
  return out;
}

double Number(int64_t value) { return static_cast<double>(value); }

// Returns the number of features in each head. Throws `InputError` if the width does not divide.
int64_t HeadDim(const std::string& layer, int64_t width, int64_t heads) {
  if (heads < 1 || width % heads != 0) {
    throw InputError(fmt::format("layer '{}': a width of {} does not divide into {} heads", layer,
                                 width, heads));
  }
  return width / heads;
}

}  // namespace

Network::Network(std::string name, Shape image) : name_(std::move(name)) {
  AddLayer({.name = "data", .type = OpType::kInput, .output = image}, {});
}

Network Network::OfTokens(std::string name, int64_t length) {
  Network network(std::move(name));
  network.AddLayer({.name = "data",
                    .type = OpType::kInput,
                    .output = {.channels = 1, .length = length},
                    .dtype = DataType::kInt32},
                   {});
  return network;
}

LayerNode Network::AddLayer(LayerSpec spec, std::span<const LayerNode> inputs) {
  const LayerNode node = nodes_.size();
  for (const LayerNode input : inputs) nodes_[input].consumers.push_back(node);
  nodes_.push_back({std::move(spec), {inputs.begin(), inputs.end()}, {}});
  return node;
}

Network Network::InOrder(std::span<const LayerNode> order) const {
  SPILLWAY_CHECK(order.size() == size() && order.front() == image());
  Network reordered(name_);
  reordered.AddLayer(layer(image()), {});
  std::vector<LayerNode> moved(order.size());
  for (const LayerNode node : order.subspan(1)) {
    std::vector<LayerNode> inputs = Inputs(node);
    for (LayerNode& input : inputs) {
      input = moved[input];
    }
    LayerSpec spec = layer(node);
    if (spec.tied) spec.tied = moved[*spec.tied];
    moved[node] = reordered.AddLayer(std::move(spec), inputs);
  }
  return reordered;
}

LayerNode Network::Conv(std::string name, LayerNode x, const ConvSpec& spec) {
  const Shape in = layer(x).output;
  if (spec.groups < 1 || in.channels % spec.groups != 0 || spec.channels % spec.groups != 0) {
    throw InputError(fmt::format("layer '{}': {} and {} channels do not divide into {} groups",
                                 name, in.channels, spec.channels, spec.groups));
  }
  const Shape out{spec.channels,
                  WindowExtent(name, in.height, spec.kernel_h, spec.stride, spec.pad_h, false),
                  WindowExtent(name, in.width, spec.kernel_w, spec.stride, spec.pad_w, false)};
  LayerSpec layer{
      .name = std::move(name),
      .type = OpType::kConv2d,
      .output = out,
      .attributes = {{"in_channels", Number(in.channels)},
                     {"in_height", Number(in.height)},
                     {"in_width", Number(in.width)},
                     {"out_channels", Number(out.channels)},
                     {"out_height", Number(out.height)},
                     {"out_width", Number(out.width)},
                     {"kernel_h", Number(spec.kernel_h)},
                     {"kernel_w", Number(spec.kernel_w)},
                     {"stride_h", Number(spec.stride)},
                     {"stride_w", Number(spec.stride)},
                     {"pad_h", Number(spec.pad_h)},
                     {"pad_w", Number(spec.pad_w)},
                     {"groups", Number(spec.groups)},
                     {"bias", spec.bias ? 1.0 : 0.0}},
      .weight_shape = {spec.channels, in.channels / spec.groups, spec.kernel_h, spec.kernel_w},
      .bias_elements = spec.bias ? spec.channels : 0};
  return AddLayer(std::move(layer), std::array{x});
}

LayerNode Network::Linear(std::string name, LayerNode x, int64_t features, const LinearSpec& spec) {
  const Shape shape = layer(x).output;
  const int64_t in = shape.elements() / shape.positions();
  LayerSpec made{.name = std::move(name),
                 .type = OpType::kLinear,
                 .output = {.channels = features, .length = shape.length},
                 .attributes = {{"in_features", Number(in)},
                                {"out_features", Number(features)},
                                {"bias", spec.bias ? 1.0 : 0.0}},
                 .weight_shape = {features, in},
                 .bias_elements = spec.bias ? features : 0,
                 .tied = spec.tied};
  if (shape.length > 0) made.attributes.push_back({"rows", Number(shape.length)});
  if (spec.tied && layer(*spec.tied).weight_shape != made.weight_shape) {
    throw InputError(fmt::format("layer '{}': its weight is {}, that of '{}' is {}", made.name,
                                 fmt::join(made.weight_shape, "x"), layer(*spec.tied).name,
                                 fmt::join(layer(*spec.tied).weight_shape, "x")));
  }
  return AddLayer(std::move(made), std::array{x});
}

LayerNode Network::Norm(OpType type, std::string name, LayerNode x, double epsilon) {
  const Shape shape = layer(x).output;
  return AddLayer({.name = std::move(name),
                   .type = type,
                   .output = shape,
                   .attributes = {{"rows", Number(shape.positions())},
                                  {"features", Number(shape.channels)},
                                  {"epsilon", epsilon}},
                   .weight_shape = {shape.channels},
                   .bias_elements = type == OpType::kLayerNorm ? shape.channels : 0},
                  std::array{x});
}

LayerNode Network::Embedding(std::string name, LayerNode tokens, int64_t vocabulary,
                             int64_t features) {
  const int64_t length = layer(tokens).output.length;
  return AddLayer({.name = std::move(name),
                   .type = OpType::kEmbedding,
                   .output = {.channels = features, .length = length},
                   .attributes = {{"rows", Number(length)},
                                  {"vocabulary", Number(vocabulary)},
                                  {"features", Number(features)}},
                   .weight_shape = {vocabulary, features}},
                  std::array{tokens});
}

LayerNode Network::PositionEmbedding(std::string name, LayerNode x, const PositionSpec& spec) {
  const Shape shape = layer(x).output;
  if (spec.span < 1 || (shape.length - 1) / spec.span >= spec.positions) {
    throw InputError(fmt::format("layer '{}': a table of {} positions is too short for {}", name,
                                 spec.positions, shape.length));
  }
  return AddLayer({.name = std::move(name),
                   .type = OpType::kPositionEmbedding,
                   .output = shape,
                   .attributes = {{"rows", Number(shape.length)},
                                  {"features", Number(shape.channels)},
                                  {"positions", Number(spec.positions)},
                                  {"span", Number(spec.span)},
                                  {"class_token", 0}},
                   .weight_shape = {spec.positions, shape.channels}},
                  std::array{x});
}

LayerNode Network::ClassToken(std::string name, LayerNode map) {
  const Shape shape = layer(map).output;
  const int64_t length = shape.height * shape.width + 1;
  return AddLayer({.name = std::move(name),
                   .type = OpType::kPositionEmbedding,
                   .output = {.channels = shape.channels, .length = length},
                   .attributes = {{"rows", Number(length)},
                                  {"features", Number(shape.channels)},
                                  {"positions", Number(length)},
                                  {"span", 1},
                                  {"class_token", 1}},
                   .weight_shape = {length, shape.channels},
                   .bias_elements = shape.channels},
                  std::array{map});
}

LayerNode Network::Rotary(std::string name, LayerNode x, int64_t heads, double theta) {
  const Shape shape = layer(x).output;
  const int64_t head_dim = HeadDim(name, shape.channels, heads);
  if (head_dim % 2 != 0) {
    throw InputError(fmt::format(
        "layer '{}': heads of {} features have no pairs; the number must be even", name, head_dim));
  }
  return AddLayer({.name = std::move(name),
                   .type = OpType::kRotary,
                   .output = shape,
                   .attributes = {{"rows", Number(shape.length)},
                                  {"heads", Number(heads)},
                                  {"head_dim", Number(head_dim)},
                                  {"theta", theta}}},
                  std::array{x});
}

LayerNode Network::Attention(const std::string& name, LayerNode queries, LayerNode keys,
                             LayerNode values, const AttentionSpec& spec) {
  const Shape shape = layer(queries).output;
  const int64_t head_dim = HeadDim(name, shape.channels, spec.heads);
  if (spec.kv_heads < 1 || spec.heads % spec.kv_heads != 0) {
    throw InputError(fmt::format("layer '{}': {} heads do not divide into {} groups", name,
                                 spec.heads, spec.kv_heads));
  }
  for (const LayerNode node : {keys, values}) {
    const Shape got = layer(node).output;
    if (got == Shape{.channels = spec.kv_heads * head_dim, .length = shape.length}) continue;
    throw InputError(fmt::format("layer '{}': '{}' has {} positions of {} features, needs {} of {}",
                                 name, layer(node).name, got.length, got.channels, shape.length,
                                 spec.kv_heads * head_dim));
  }
  const std::vector<Attribute> heads{{"rows", Number(shape.length)},
                                     {"heads", Number(spec.heads)},
                                     {"kv_heads", Number(spec.kv_heads)},
                                     {"head_dim", Number(head_dim)}};
  if (spec.kind == AttentionKind::kFused) {
    LayerSpec made{name, OpType::kAttention, shape, heads};
    made.attributes.push_back({"causal", spec.causal ? 1.0 : 0.0});
    return AddLayer(std::move(made), std::array{queries, keys, values});
  }
  const Shape square{spec.heads, shape.length, shape.length};
  const LayerNode scores = AddLayer({name + ".scores", OpType::kAttentionScores, square, heads},
                                    std::array{queries, keys});
  const LayerNode softmax = AddLayer({name + ".softmax",
                                      OpType::kSoftmax,
                                      square,
                                      {{"rows", Number(spec.heads * shape.length)},
                                       {"columns", Number(shape.length)},
                                       {"causal", spec.causal ? 1.0 : 0.0}}},
                                     std::array{scores});
  return AddLayer({name + ".values", OpType::kAttentionValues, shape, heads},
                  std::array{softmax, values});
}

LayerNode Network::Select(std::string name, LayerNode x, int64_t index) {
  const Shape shape = layer(x).output;
  if (index < 0 || index >= shape.length) {
    throw InputError(
        fmt::format("layer '{}': there is no position {} of {}", name, index, shape.length));
  }
  return AddLayer({.name = std::move(name),
                   .type = OpType::kSelect,
                   .output = {.channels = shape.channels},
                   .attributes = {{"rows", Number(shape.length)},
                                  {"features", Number(shape.channels)},
                                  {"index", Number(index)}}},
                  std::array{x});
}

LayerNode Network::Pool(OpType type, std::string name, LayerNode x, const PoolSpec& spec) {
  const Shape in = layer(x).output;
  const Shape out{in.channels,
                  WindowExtent(name, in.height, spec.kernel, spec.stride, spec.pad, spec.ceil),
                  WindowExtent(name, in.width, spec.kernel, spec.stride, spec.pad, spec.ceil)};
  LayerSpec layer{.name = std::move(name),
                  .type = type,
                  .output = out,
                  .attributes = {{"channels", Number(in.channels)},
                                 {"in_height", Number(in.height)},
                                 {"in_width", Number(in.width)},
                                 {"out_height", Number(out.height)},
                                 {"out_width", Number(out.width)},
                                 {"kernel_h", Number(spec.kernel)},
                                 {"kernel_w", Number(spec.kernel)},
                                 {"stride_h", Number(spec.stride)},
                                 {"stride_w", Number(spec.stride)},
                                 {"pad_h", Number(spec.pad)},
                                 {"pad_w", Number(spec.pad)}}};
  return AddLayer(std::move(layer), std::array{x});
}

LayerNode Network::MaxPool(std::string name, LayerNode x, const PoolSpec& spec) {
  return Pool(OpType::kMaxPool2d, std::move(name), x, spec);
}

LayerNode Network::AvgPool(std::string name, LayerNode x, const PoolSpec& spec) {
  return Pool(OpType::kAvgPool2d, std::move(name), x, spec);
}

LayerNode Network::Activation(OpType type, std::string name, LayerNode x) {
  const Shape shape = layer(x).output;
  return AddLayer({.name = std::move(name),
                   .type = type,
                   .output = shape,
                   .attributes = {{"elements", Number(shape.elements())}}},
                  std::array{x});
}

LayerNode Network::Lrn(std::string name, LayerNode x, const LrnSpec& spec) {
  const Shape shape = layer(x).output;
  if (spec.size < 1) {
    throw InputError(fmt::format("layer '{}': a window of {} channels is empty", name, spec.size));
  }
  return AddLayer({.name = std::move(name),
                   .type = OpType::kLrn,
                   .output = shape,
                   .attributes = {{"channels", Number(shape.channels)},
                                  {"height", Number(shape.height)},
                                  {"width", Number(shape.width)},
                                  {"size", Number(spec.size)},
                                  {"alpha", spec.alpha},
                                  {"beta", spec.beta},
                                  {"k", spec.k}}},
                  std::array{x});
}

LayerNode Network::BatchNorm(std::string name, LayerNode x) {
  const Shape shape = layer(x).output;
  return AddLayer({.name = std::move(name),
                   .type = OpType::kBatchNorm,
                   .output = shape,
                   .attributes = {{"channels", Number(shape.channels)},
                                  {"height", Number(shape.height)},
                                  {"width", Number(shape.width)},
                                  {"epsilon", 1e-5},
                                  {"momentum", 0.1}},
                   .weight_shape = {shape.channels},
                   .bias_elements = shape.channels},
                  std::array{x});
}

LayerNode Network::Dropout(std::string name, LayerNode x, double ratio) {
  if (!(ratio >= 0 && ratio < 1)) {
    throw InputError(fmt::format("layer '{}': the ratio {} is not in [0, 1)", name, ratio));
  }
  const Shape shape = layer(x).output;
  return AddLayer({.name = std::move(name),
                   .type = OpType::kDropout,
                   .output = shape,
                   .attributes = {{"elements", Number(shape.elements())}, {"ratio", ratio}}},
                  std::array{x});
}

LayerNode Network::Binary(OpType type, std::string name, LayerNode a, LayerNode b) {
  const Shape shape = layer(a).output;
  const Shape other = layer(b).output;
  if (shape != other) {
    throw InputError(fmt::format("layer '{}': '{}' is {}x{}x{}, '{}' is {}x{}x{}", name,
                                 layer(a).name, shape.channels, shape.height, shape.width,
                                 layer(b).name, other.channels, other.height, other.width));
  }
  return AddLayer({.name = std::move(name),
                   .type = type,
                   .output = shape,
                   .attributes = {{"elements", Number(shape.elements())}}},
                  std::array{a, b});
}

LayerNode Network::Concat(std::string name, std::span<const LayerNode> parts) {
  if (parts.empty()) throw InputError(fmt::format("layer '{}' has nothing to concatenate", name));
  Shape out = layer(parts.front()).output;
  out.channels = 0;
  LayerSpec spec{.name = std::move(name), .type = OpType::kConcat};
  for (const LayerNode part : parts) {
    const Shape shape = layer(part).output;
    if (shape.height != out.height || shape.width != out.width) {
      throw InputError(fmt::format("layer '{}': '{}' is {}x{}, the first operand {}x{}", spec.name,
                                   layer(part).name, shape.height, shape.width, out.height,
                                   out.width));
    }
    out.channels += shape.channels;
  }
  spec.output = out;
  spec.attributes = {{"parts", Number(static_cast<int64_t>(parts.size()))},
                     {"height", Number(out.height)},
                     {"width", Number(out.width)}};
  for (size_t i = 0; i < parts.size(); ++i) {
    spec.attributes.push_back(
        {fmt::format("channels_{}", i), Number(layer(parts[i]).output.channels)});
  }
  return AddLayer(std::move(spec), parts);
}

LayerNode Network::SoftmaxLoss(std::string name, LayerNode x) {
  const Shape shape = layer(x).output;
  LayerSpec made{.name = std::move(name),
                 .type = OpType::kSoftmaxLoss,
                 .output = shape,
                 .attributes = {{"elements", Number(shape.elements() / shape.positions())}}};
  if (shape.length > 0) made.attributes.push_back({"rows", Number(shape.length)});
  return AddLayer(std::move(made), std::array{x});
}

LayerNode Network::ConvRelu(const std::string& name, LayerNode x, const ConvSpec& spec) {
  return Relu(name + ".relu", Conv(name, x, spec));
}

LayerNode Network::LinearRelu(const std::string& name, LayerNode x, int64_t features) {
  return Relu(name + ".relu", Linear(name, x, features));
}

LayerNode Network::ConvNorm(const std::string& name, LayerNode x, const ConvSpec& spec) {
  return BatchNorm(name + ".bn", Conv(name, x, spec));
}

LayerNode Network::ConvNormRelu(const std::string& name, LayerNode x, const ConvSpec& spec) {
  return Relu(name + ".relu", ConvNorm(name, x, spec));
}

}  // namespace spillway::traces
