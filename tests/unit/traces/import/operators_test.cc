#include "traces/import/operators.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::testing {
namespace {

using Shape = std::vector<int64_t>;

ExecutionTrace::TensorRef Ref(const Shape& shape) {
  ExecutionTrace::TensorRef ref;
  ref.elements = 1;
  for (const int64_t extent : shape) ref.elements *= extent;
  ref.element_size = 4;
  ref.shape = shape;
  return ref;
}

ExecutionTrace::Node NodeOf(const std::string& name, const std::vector<Shape>& inputs,
                            const std::vector<Shape>& outputs) {
  ExecutionTrace::Node node;
  node.name = name;
  for (const Shape& shape : inputs) node.inputs.push_back(Ref(shape));
  for (const Shape& shape : outputs) node.outputs.push_back(Ref(shape));
  return node;
}

TEST(OperatorsTest, TypesAndFlops) {
  struct Case {
    const char* name;
    std::vector<Shape> inputs, outputs;
    OpType type;
    int64_t flops;
  };
  const Shape image{8, 3, 10, 10}, weight{16, 3, 5, 5}, map{8, 16, 6, 6};
  const int64_t convolution = 2 * (8 * 16 * 6 * 6) * (3 * 5 * 5);
  // Attention: batch 2, 4 heads, 5 queries, 7 keys, width 8.
  const Shape query{2, 4, 5, 8}, key{2, 4, 7, 8}, query_inside{2, 5, 4, 8}, key_inside{2, 7, 4, 8};
  const int64_t product = 2 * (2 * 4) * 5 * 7 * 8;
  for (const Case& test : {
           Case{"aten::mm", {{2, 3}, {3, 5}}, {{2, 5}}, OpType::kMatmul, 2 * 2 * 3 * 5},
           Case{"aten::addmm", {{5}, {2, 3}, {3, 5}}, {{2, 5}}, OpType::kMatmul, 60},
           Case{"aten::addmm", {{2, 5}, {2, 3}, {3, 5}}, {{2, 5}}, OpType::kMatmul, 60},
           Case{"aten::bmm", {{7, 2, 3}, {7, 3, 5}}, {{7, 2, 5}}, OpType::kMatmul, 7 * 60},
           Case{"aten::baddbmm",
                {{7, 2, 5}, {7, 2, 3}, {7, 3, 5}},
                {{7, 2, 5}},
                OpType::kMatmul,
                420},
           Case{"aten::linear", {{7, 2, 3}, {5, 3}, {5}}, {{7, 2, 5}}, OpType::kMatmul, 420},
           Case{"aten::cudnn_convolution",
                {image, weight},
                {map},
                OpType::kConvolution,
                convolution},
           Case{"aten::cudnn_convolution",
                {{8, 16, 6, 6}, {16, 1, 3, 3}},
                {map},
                OpType::kConvolution,
                2 * (8 * 16 * 6 * 6) * 9},  // in 16 groups
           Case{"aten::convolution_backward",
                {map, image, weight},
                {image, weight, {16}},
                OpType::kConvolution,
                2 * convolution},
           Case{"aten::convolution_backward",
                {map, image, weight},
                {weight},
                OpType::kConvolution,
                convolution},
           Case{"aten::_flash_attention_forward",
                {query_inside, key_inside, key_inside},
                {query_inside},
                OpType::kAttention,
                2 * product},
           Case{"aten::_scaled_dot_product_flash_attention_for_cpu",
                {query, key, key},
                {query},
                OpType::kAttention,
                2 * product},
           // For queries with themselves, the longer of the two dimensions is the sequence.
           Case{"aten::_flash_attention_forward",
                {key_inside, key_inside, key_inside},
                {key_inside},
                OpType::kAttention,
                2 * (2 * (2 * 4) * 7 * 7 * 8)},
           Case{"aten::_flash_attention_backward",
                {query_inside, query_inside, key_inside, key_inside},
                {query_inside, key_inside, key_inside},
                OpType::kAttention,
                5 * product},
           Case{"aten::relu", {{2, 3}}, {{2, 3}}, OpType::kOther, 0},
           Case{"mine::mm", {{2, 3}, {3, 5}}, {{2, 5}}, OpType::kOther, 0},
           // If the operands do not match the operator, the flops are unknown and count as 0.
           Case{"aten::mm", {{6}, {15}}, {{10}}, OpType::kMatmul, 0},
           Case{"aten::mm", {{2, 3}, {3, 5}}, {}, OpType::kMatmul, 0},
           Case{"aten::convolution_backward", {map, image}, {image}, OpType::kConvolution, 0},
           Case{"aten::_flash_attention_forward", {{8}, {8}}, {{8}}, OpType::kAttention, 0},
       }) {
    const ExecutionTrace::Node node = NodeOf(test.name, test.inputs, test.outputs);
    EXPECT_EQ(TypeOf(node), test.type) << test.name;
    EXPECT_EQ(FlopsOf(node), test.flops) << test.name << " of " << test.inputs.size() << " inputs";
  }
}

TEST(OperatorsTest, OnlyAllocates) {
  EXPECT_TRUE(OnlyAllocates(NodeOf("aten::empty_strided", {}, {{1}})));
  EXPECT_FALSE(OnlyAllocates(NodeOf("aten::zeros", {}, {{1}})));
}

TEST(OperatorsTest, WritesBySchema) {
  struct Case {
    const char* schema;
    std::vector<bool> writes;  // one for each argument
  };
  for (const Case& test : {
           Case{"", {false, false}},
           Case{"aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", {false, false}},
           Case{"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                {false, false, false}},
           Case{"aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
                {true, false, false}},
           Case{"aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", {false, false}},
           Case{"aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
                {false, false, true}},
           Case{"aten::gather.out(Tensor self, int dim, Tensor index, *, bool sparse_grad=False, "
                "Tensor(a!) out) -> Tensor(a!)",
                {false, false, false, false, true}},
           Case{"aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()", {true, false}},
           Case{"aten::f(int[2] size=[1, 2], Tensor(a!) out) -> Tensor(a!)", {false, true}},
       }) {
    ExecutionTrace::Node node;
    node.schema = test.schema;
    for (uint32_t i = 0; i < test.writes.size(); ++i) {
      EXPECT_EQ(Writes(node, i), test.writes[i]) << test.schema << " " << i;
    }
  }
}

}  // namespace
}  // namespace spillway::testing
