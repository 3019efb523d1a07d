#include "traces/lowering/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "traces/base/error.h"

namespace spillway {
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

}  // namespace

Network::Network(std::string name, Shape image) : name_(std::move(name)) {
  AddLayer({.name = "data", .type = OpType::kInput, .output = image}, {});
}

LayerNode Network::AddLayer(LayerSpec spec, std::span<const LayerNode> inputs) {
  const LayerNode node = nodes_.size();
  for (const LayerNode input : inputs) nodes_[input].consumers.push_back(node);
  nodes_.push_back({std::move(spec), {inputs.begin(), inputs.end()}, {}});
  return node;
}

Network Network::InOrder(std::span<const LayerNode> order) const {
  SPILLWAY_CHECK(order.size() == size() && order.front() == image());
  Network reordered(name_, layer(image()).output);
  std::vector<LayerNode> moved(order.size());
  for (const LayerNode node : order.subspan(1)) {
    std::vector<LayerNode> inputs = Inputs(node);
    for (LayerNode& input : inputs) {
      input = moved[input];
    }
    moved[node] = reordered.AddLayer(layer(node), inputs);
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

LayerNode Network::Linear(std::string name, LayerNode x, int64_t features) {
  const int64_t in = layer(x).output.elements();
  LayerSpec layer{.name = std::move(name),
                  .type = OpType::kLinear,
                  .output = {features},
                  .attributes = {{"in_features", Number(in)},
                                 {"out_features", Number(features)},
                                 {"bias", 1.0}},
                  .weight_shape = {features, in},
                  .bias_elements = features};
  return AddLayer(std::move(layer), std::array{x});
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

LayerNode Network::Add(std::string name, LayerNode a, LayerNode b) {
  const Shape shape = layer(a).output;
  const Shape other = layer(b).output;
  if (shape != other) {
    throw InputError(fmt::format("layer '{}': '{}' is {}x{}x{}, '{}' is {}x{}x{}", name,
                                 layer(a).name, shape.channels, shape.height, shape.width,
                                 layer(b).name, other.channels, other.height, other.width));
  }
  return AddLayer({.name = std::move(name),
                   .type = OpType::kAdd,
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
  return AddLayer({.name = std::move(name),
                   .type = OpType::kSoftmaxLoss,
                   .output = shape,
                   .attributes = {{"elements", Number(shape.elements())}}},
                  std::array{x});
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

}  // namespace spillway
