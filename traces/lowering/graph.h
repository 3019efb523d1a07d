// A network as a graph of layers with shapes, before any decision about memory.
//
// Nodes are layers; edges carry activations of one sample. A node can only be built from nodes that
// exist, so the order of construction is a topological order.

#ifndef SPILLWAY_TRACES_LOWERING_GRAPH_H_
#define SPILLWAY_TRACES_LOWERING_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/trace.h"

namespace spillway {

// The extent of one sample's activation. A vector has height and width 1.
struct Shape {
  int64_t channels = 0;
  int64_t height = 1;
  int64_t width = 1;

  int64_t elements() const { return channels * height * width; }
  bool operator==(const Shape&) const = default;
};

struct LayerSpec {
  std::string name;
  OpType type = OpType::kOther;
  Shape output{};
  std::vector<Attribute> attributes{};  // geometry, named as in FORMAT.md
  // The sizes of the layer's parameters: none, a weight, or a weight and a bias.
  std::vector<int64_t> weight_shape{};
  int64_t bias_elements = 0;
};

using LayerNode = size_t;

struct ConvSpec {
  int64_t channels = 0;  // of the output
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t groups = 1;
  bool bias = true;

  static ConvSpec Square(int64_t channels, int64_t kernel, int64_t stride = 1, int64_t pad = 0) {
    return {channels, kernel, kernel, stride, pad, pad, 1, true};
  }
};

// Local response normalisation with the defaults of Caffe's reference model. alpha is divided by
// the size of the window.
struct LrnSpec {
  int64_t size = 5;  // number of channels in the window
  double alpha = 1e-4;
  double beta = 0.75;
  double k = 1;
};

struct PoolSpec {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t pad = 0;
  bool ceil = false;  // round the output extent up, so the last window may extend beyond the edge
};

// Builds the graph layer by layer. A node may be the operand of any number of later nodes; the
// lowering decides whether they share its output or get copies. Every method that adds a layer
// returns the new node. It throws an `InputError` that names the layer if the geometry is
// impossible: an empty output, or operands of different shapes.
class Network {
 public:
  Network(std::string name, Shape image);

  LayerNode image() const { return 0; }
  LayerNode Conv(std::string name, LayerNode x, const ConvSpec& spec);
  LayerNode Linear(std::string name, LayerNode x, int64_t features);
  LayerNode MaxPool(std::string name, LayerNode x, const PoolSpec& spec);
  LayerNode AvgPool(std::string name, LayerNode x, const PoolSpec& spec);
  LayerNode Relu(std::string name, LayerNode x) {
    return Activation(OpType::kRelu, std::move(name), x);
  }
  // Adds a function of each element. REQUIRES: the op type has "elements" as its only attribute.
  LayerNode Activation(OpType type, std::string name, LayerNode x);
  LayerNode Lrn(std::string name, LayerNode x, const LrnSpec& spec = {});
  LayerNode BatchNorm(std::string name, LayerNode x);
  LayerNode Dropout(std::string name, LayerNode x, double ratio = 0.5);
  LayerNode Concat(std::string name, std::span<const LayerNode> parts);
  LayerNode Add(std::string name, LayerNode a, LayerNode b);
  LayerNode SoftmaxLoss(std::string name, LayerNode x);

  // Add a convolution or a linear layer, followed by a ReLU named `name` + ".relu".
  LayerNode ConvRelu(const std::string& name, LayerNode x, const ConvSpec& spec);
  LayerNode LinearRelu(const std::string& name, LayerNode x, int64_t features);
  // Add a convolution and a batch normalisation named `name` + ".bn". `ConvNormRelu` also adds a
  // ReLU named `name` + ".relu".
  LayerNode ConvNorm(const std::string& name, LayerNode x, const ConvSpec& spec);
  LayerNode ConvNormRelu(const std::string& name, LayerNode x, const ConvSpec& spec);

  const std::string& name() const { return name_; }
  size_t size() const { return nodes_.size(); }
  const LayerSpec& layer(LayerNode node) const { return nodes_[node].layer; }
  // Operands, in their order.
  const std::vector<LayerNode>& Inputs(LayerNode node) const { return nodes_[node].inputs; }
  // In order of construction; a layer that reads the output twice stands there twice.
  const std::vector<LayerNode>& Consumers(LayerNode node) const { return nodes_[node].consumers; }

  // Returns a network of the same layers, built in another order. REQUIRES: `order` names each
  // layer once, inputs before consumers.
  Network InOrder(std::span<const LayerNode> order) const;

 private:
  struct Node {
    LayerSpec layer;
    std::vector<LayerNode> inputs;
    std::vector<LayerNode> consumers;
  };

  LayerNode AddLayer(LayerSpec spec, std::span<const LayerNode> inputs);
  LayerNode Pool(OpType type, std::string name, LayerNode x, const PoolSpec& spec);

  std::string name_;
  std::vector<Node> nodes_;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOWERING_GRAPH_H_
