#include "traces/import/operators.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "traces/base/units.h"

namespace spillway::traces {
namespace {

using Node = ExecutionTrace::Node;
using TensorRef = ExecutionTrace::TensorRef;

// How the number of operations follows from the shapes.
enum class Rule : uint8_t {
  kProduct,      // the product of two matrices among the inputs
  kConvolution,  // for each output element its window in its group, by the shape of the weight
  kConvolutionBackward,
  kAttention,  // two products of sequence by sequence
  kAttentionBackward,
};

struct Row {
  std::string_view name;  // without "aten::"; a trailing '*' matches any rest
  OpType type;
  Rule rule;
};

// The first row that matches counts.
constexpr std::array kRows = std::to_array<Row>({
    {"mm", OpType::kMatmul, Rule::kProduct},
    {"bmm", OpType::kMatmul, Rule::kProduct},
    {"addmm*", OpType::kMatmul, Rule::kProduct},
    {"baddbmm*", OpType::kMatmul, Rule::kProduct},
    {"_addmm_activation", OpType::kMatmul, Rule::kProduct},
    {"_scaled_mm", OpType::kMatmul, Rule::kProduct},
    {"linear", OpType::kMatmul, Rule::kProduct},
    {"matmul", OpType::kMatmul, Rule::kProduct},
    {"mkldnn_linear", OpType::kMatmul, Rule::kProduct},
    {"convolution_backward*", OpType::kConvolution, Rule::kConvolutionBackward},
    {"convolution*", OpType::kConvolution, Rule::kConvolution},
    {"_convolution", OpType::kConvolution, Rule::kConvolution},
    {"cudnn_convolution*", OpType::kConvolution, Rule::kConvolution},
    {"miopen_convolution*", OpType::kConvolution, Rule::kConvolution},
    {"mkldnn_convolution*", OpType::kConvolution, Rule::kConvolution},
    {"thnn_conv*", OpType::kConvolution, Rule::kConvolution},
    {"_slow_conv2d_forward", OpType::kConvolution, Rule::kConvolution},
    {"_slow_conv2d_backward", OpType::kConvolution, Rule::kConvolutionBackward},
    {"conv_depthwise*", OpType::kConvolution, Rule::kConvolution},
    {"_conv_depthwise2d", OpType::kConvolution, Rule::kConvolution},
    {"_efficient_attention_forward", OpType::kAttention, Rule::kAttention},
    {"_efficient_attention_backward", OpType::kAttention, Rule::kAttentionBackward},
    {"_flash_attention_forward", OpType::kAttention, Rule::kAttention},
    {"_flash_attention_backward", OpType::kAttention, Rule::kAttentionBackward},
    {"_cudnn_attention_forward", OpType::kAttention, Rule::kAttention},
    {"_cudnn_attention_backward", OpType::kAttention, Rule::kAttentionBackward},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", OpType::kAttention,
     Rule::kAttentionBackward},
    {"_scaled_dot_product_flash_attention_for_cpu", OpType::kAttention, Rule::kAttention},
    {"_scaled_dot_product_cudnn_attention_backward", OpType::kAttention, Rule::kAttentionBackward},
    {"_scaled_dot_product_cudnn_attention", OpType::kAttention, Rule::kAttention},
});

constexpr std::array<std::string_view, 7> kAllocations{
    "aten::empty",     "aten::empty_strided", "aten::empty_like",       "aten::empty_permuted",
    "aten::new_empty", "aten::resize_",       "aten::new_empty_strided"};

const Row* RowOf(const Node& node) {
  std::string_view name = node.name;
  if (!name.starts_with("aten::")) return nullptr;
  name.remove_prefix(6);
  const auto found = std::ranges::find_if(kRows, [&](const Row& row) {
    return row.name.ends_with('*') ? name.starts_with(row.name.substr(0, row.name.size() - 1))
                                   : name == row.name;
  });
  return found == kRows.end() ? nullptr : &*found;
}

// Returns the product of two numbers, capped at 2^60.
int64_t Times(int64_t a, int64_t b) {
  const Int128 product = Int128{a} * b;
  constexpr int64_t kMost = int64_t{1} << 60;
  return product > kMost ? kMost : static_cast<int64_t>(product);
}

// Returns 2 m k n for a product of m x k and k x n matrices, times the batch size for batched
// products. The factors are the last two inputs that are matrices, because an addend before them
// may also be a matrix.
int64_t ProductFlops(const Node& node) {
  const TensorRef* left = nullptr;
  const TensorRef* right = nullptr;
  for (const TensorRef& input : node.inputs) {
    if (input.shape.size() < 2) continue;
    left = right;
    right = &input;
  }
  if (left == nullptr || left->shape.back() == 0) return 0;
  const bool linear = node.name == "aten::linear" || node.name == "aten::mkldnn_linear";
  const int64_t columns = linear ? right->shape.front() : right->shape.back();
  return Times(2 * columns, left->elements);
}

// Returns two operations per output element and element of its window. The weight is [out, in /
// groups, ...], so a window has as many elements as the weight has per output channel.
int64_t ConvolutionFlops(const TensorRef& output, const TensorRef& weight) {
  if (weight.shape.size() < 3 || weight.shape.front() == 0) return 0;
  return Times(2 * (weight.elements / weight.shape.front()), output.elements);
}

// Returns the operations of attention. Queries and keys are [batch, length, heads, width] or
// [batch, heads, length, width]. Each query meets each key in two products. With a causal mask only
// half of these operations are done.
int64_t AttentionFlops(const TensorRef& query, const TensorRef& key) {
  if (query.shape.size() != 4 || key.shape.size() != 4) return 0;
  const int64_t width = key.shape[3], batch = key.shape[0];
  if (width == 0 || batch == 0) return 0;
  // The middle extent that query and key share is the number of heads.
  const int64_t keys =
      key.shape[1] == query.shape[1] && key.shape[1] <= key.shape[2] ? key.shape[2] : key.shape[1];
  return Times(4 * keys, query.elements);
}

}  // namespace

OpType TypeOf(const Node& node) {
  const Row* const row = RowOf(node);
  return row == nullptr ? OpType::kOther : row->type;
}

int64_t FlopsOf(const Node& node) {
  const Row* const row = RowOf(node);
  if (row == nullptr || node.inputs.empty() || node.outputs.empty()) return 0;
  const auto& inputs = node.inputs;
  switch (row->rule) {
    case Rule::kProduct:
      return ProductFlops(node);
    case Rule::kConvolution:
      return inputs.size() < 2 ? 0 : ConvolutionFlops(node.outputs[0], inputs[1]);
    case Rule::kConvolutionBackward: {  // inputs: output gradient, input, weight
      if (inputs.size() < 3) return 0;
      const int64_t once = ConvolutionFlops(inputs[0], inputs[2]);
      return Times(once, std::min<int64_t>(2, std::ssize(node.outputs)));
    }
    case Rule::kAttention:
      return inputs.size() < 2 ? 0 : AttentionFlops(inputs[0], inputs[1]);
    case Rule::kAttentionBackward:  // inputs: output gradient, query, key
      // Backward has five products where forward has two.
      return inputs.size() < 3 ? 0 : Times(5, AttentionFlops(inputs[1], inputs[2]) / 2);
  }
  return 0;
}

bool OnlyAllocates(const Node& node) { return std::ranges::count(kAllocations, node.name) != 0; }

bool Writes(const Node& node, uint32_t argument) {
  std::string_view rest = node.schema;
  rest.remove_prefix(std::min(rest.find('('), rest.size()));
  int depth = 0;
  uint32_t at = 0;
  char last = '\0';
  for (const char c : rest) {
    if (c == '(' || c == '[') ++depth;
    if ((c == ')' || c == ']') && --depth == 0) break;
    // The '*' before keyword-only arguments is not an argument itself.
    if (c == ',' && depth == 1 && last != '*') ++at;
    last = c;
    if (at > argument) break;
    if (c == '!' && at == argument) return true;
  }
  return false;
}

}  // namespace spillway::traces
