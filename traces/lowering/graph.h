// A network as a graph of layers with shapes, before any decision about memory.
//
// Nodes are layers; edges carry activations of one sample. A node can only be built from nodes that
// exist, so the order of construction is a topological order.

#ifndef SPILLWAY_TRACES_LOWERING_GRAPH_H_
#define SPILLWAY_TRACES_LOWERING_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/trace.h"

namespace spillway::traces {

// The extent of one sample's activation. A vector has height and width 1. A sequence is `length`
// such vectors, one behind the other; other activations have length 0.
struct Shape {
  int64_t channels = 0;
  int64_t height = 1;
  int64_t width = 1;
  int64_t length = 0;

  // Returns the number of vectors: 1 unless the activation is a sequence.
  int64_t positions() const { return length > 0 ? length : 1; }
  int64_t elements() const { return positions() * channels * height * width; }
  bool operator==(const Shape&) const = default;
};

using LayerNode = size_t;

struct LayerSpec {
  std::string name;
  OpType type = OpType::kOther;
  Shape output{};
  std::vector<Attribute> attributes{};  // geometry, named as in FORMAT.md
  // The sizes of the layer's parameters: none, a weight, or a weight and a bias.
  std::vector<int64_t> weight_shape{};
  int64_t bias_elements = 0;
  std::optional<LayerNode> tied{};      // an earlier layer, whose weight this layer uses as its own
  DataType dtype = DataType::kFloat32;  // the type of an input layer's output
};

struct ConvSpec {
  int64_t channels = 0;  // the output's channels
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

struct LinearSpec {
  bool bias = true;
  std::optional<LayerNode> tied{};  // an earlier layer, whose weight this layer uses as its own
};

struct PositionSpec {
  int64_t positions = 0;  // rows of the table
  int64_t span = 1;       // consecutive positions of the sequence that share a row
};

// Either one op computes attention and keeps no scores (fused), or a product, a softmax and another
// product do, so that scores and probabilities are tensors (math).
enum class AttentionKind : uint8_t { kFused, kMath };

struct AttentionSpec {
  int64_t heads = 1;     // the heads of the queries
  int64_t kv_heads = 1;  // the heads of keys and values; each serves heads / kv_heads of `heads`
  bool causal = false;   // a position attends to itself and the positions before it only
  AttentionKind kind = AttentionKind::kFused;
};

// Builds the graph layer by layer. A node may be the operand of any number of later nodes; the
// lowering decides whether they share its output or get copies. Every method that adds a layer
// returns the new node. It throws an `InputError` that names the layer if the geometry is
// impossible: an empty output, or operands of different shapes.
class Network {
 public:
  Network(std::string name, Shape image);
  // Returns a network whose input is a sequence of tokens, numbers of rows of a vocabulary.
  static Network OfTokens(std::string name, int64_t length);

  // Returns the input of the network, which may be a sequence of tokens.
  LayerNode image() const { return 0; }
  LayerNode Conv(std::string name, LayerNode x, const ConvSpec& spec);
  // Adds a linear layer. On a sequence it acts on each position; it flattens other activations.
  LayerNode Linear(std::string name, LayerNode x, int64_t features, const LinearSpec& spec = {});
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
  LayerNode LayerNorm(std::string name, LayerNode x, double epsilon = 1e-5) {
    return Norm(OpType::kLayerNorm, std::move(name), x, epsilon);
  }
  LayerNode RmsNorm(std::string name, LayerNode x, double epsilon = 1e-5) {
    return Norm(OpType::kRmsNorm, std::move(name), x, epsilon);
  }
  // Turns tokens into vectors: rows of a table with `vocabulary` rows.
  LayerNode Embedding(std::string name, LayerNode tokens, int64_t vocabulary, int64_t features);
  // Adds to each position of a sequence its row of a table.
  LayerNode PositionEmbedding(std::string name, LayerNode x, const PositionSpec& spec);
  // Turns the pixels of a map into a sequence, puts a class token before them, which is a
  // parameter, and adds to each position its row of a table.
  LayerNode ClassToken(std::string name, LayerNode map);
  // Rotates pairs of features in each head by an angle that grows with the position (RoFormer, Su
  // et al. 2021). The pairs are a head's halves.
  LayerNode Rotary(std::string name, LayerNode x, int64_t heads, double theta);
  // Adds attention over three sequences. If the kind is `kMath`, the three layers are `name` +
  // ".scores", ".softmax" and ".values".
  LayerNode Attention(const std::string& name, LayerNode queries, LayerNode keys, LayerNode values,
                      const AttentionSpec& spec);
  // Picks one position of a sequence.
  LayerNode Select(std::string name, LayerNode x, int64_t index);
  LayerNode Concat(std::string name, std::span<const LayerNode> parts);
  LayerNode Add(std::string name, LayerNode a, LayerNode b) {
    return Binary(OpType::kAdd, std::move(name), a, b);
  }
  // Multiplies element by element.
  LayerNode Mul(std::string name, LayerNode a, LayerNode b) {
    return Binary(OpType::kMul, std::move(name), a, b);
  }
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

  explicit Network(std::string name) : name_(std::move(name)) {}

  LayerNode AddLayer(LayerSpec spec, std::span<const LayerNode> inputs);
  LayerNode Binary(OpType type, std::string name, LayerNode a, LayerNode b);
  LayerNode Norm(OpType type, std::string name, LayerNode x, double epsilon);
  LayerNode Pool(OpType type, std::string name, LayerNode x, const PoolSpec& spec);

  std::string name_;
  std::vector<Node> nodes_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_GRAPH_H_
