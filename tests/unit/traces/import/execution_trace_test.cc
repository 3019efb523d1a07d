#include "traces/import/execution_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ExecutionTrace Read(std::string_view text) {
  TextStream stream(std::string(text), "e.json");
  return ReadExecutionTrace(stream);
}

// Reads a trace with a valid node followed by `nodes`.
ExecutionTrace ReadNodes(std::string_view nodes) {
  return Read(fmt::format(
      "{{\"schema\": \"1.1.1\", \"nodes\": [\n{{\"id\": 1, \"name\": \"root\"}},\n{}]}}", nodes));
}

// Returns the inputs of a node, given the JSON of its values and shapes.
std::vector<ExecutionTrace::TensorRef> InputsOf(std::string_view values, std::string_view shapes) {
  const ExecutionTrace trace = ReadNodes(fmt::format(
      R"({{"id": 2, "name": "n", "inputs": {{"values": {}, "shapes": {}}}}})", values, shapes));
  EXPECT_EQ(trace.broken, 0) << values;
  return trace.nodes.back().inputs;
}

TEST(ExecutionTraceTest, ReadsEveryField) {
  const ExecutionTrace trace = ReadNodes(R"---({
"id": 7, "name": "aten::add_", "ctrl_deps": 1,
"inputs": {"values": [[5,6,12,2048,4,"cuda:1"],0.5,"<None>"], "shapes": [[4,512],[],[]], "types": []},
"outputs": {"values": [[5,8,0,3,2,"cpu"]], "shapes": [[3]]},
"attrs": [{"name": "rf_id", "type": "uint64", "value": 2517}, {"name": "fw_parent", "value": 3},
 {"name": "seq_id", "type": "int64", "value": 40}, {"name": "tid", "type": "uint64", "value": 2},
 {"name": "op_schema", "type": "string", "value": "aten::add_(Tensor(a!) self) -> Tensor(a!)"}]})---");
  EXPECT_EQ(trace.broken, 0);
  ASSERT_THAT(trace.nodes, SizeIs(2));
  const ExecutionTrace::Node& node = trace.nodes[1];
  EXPECT_EQ(node.id, 7);
  EXPECT_EQ(node.parent, 1);
  EXPECT_EQ(node.record, 2517);
  EXPECT_EQ(node.sequence, 40);
  EXPECT_EQ(node.thread, 2);
  EXPECT_EQ(node.name, "aten::add_");
  EXPECT_EQ(node.schema, "aten::add_(Tensor(a!) self) -> Tensor(a!)");
  ASSERT_THAT(node.inputs, SizeIs(1));
  const ExecutionTrace::TensorRef& input = node.inputs[0];
  EXPECT_EQ(input.storage, 6);
  EXPECT_EQ(input.offset, 12);
  EXPECT_EQ(input.elements, 2048);
  EXPECT_EQ(input.element_size, 4);
  EXPECT_TRUE(input.on_gpu);
  EXPECT_EQ(input.device, 1);
  EXPECT_EQ(input.argument, 0u);
  EXPECT_THAT(input.shape, ElementsAre(4, 512));
  EXPECT_EQ(input.begin(), 48);
  EXPECT_EQ(input.end(), 48 + 8192);
  ASSERT_THAT(node.outputs, SizeIs(1));
  EXPECT_FALSE(node.outputs[0].on_gpu);
}

// Returns the names of the inputs' data types, given their arguments and the types of the
// arguments.
std::vector<std::string_view> TypesOf(std::string_view values, std::string_view types) {
  const ExecutionTrace trace = ReadNodes(fmt::format(
      R"({{"id": 2, "name": "n", "inputs": {{"types": {}, "values": {}}}}})", types, values));
  EXPECT_EQ(trace.broken, 0) << types;
  std::vector<std::string_view> names;
  for (const auto& ref : trace.nodes.back().inputs) names.push_back(Name(ref.dtype));
  return names;
}

TEST(ExecutionTraceTest, TypesOfElements) {
  constexpr std::string_view kOne = R"([1,10,0,6,2,"cuda:0"])";
  const auto one = [&](std::string_view type) {
    return std::string(
        TypesOf(fmt::format("[{}]", kOne), fmt::format(R"---(["Tensor({})"])---", type))[0]);
  };
  EXPECT_EQ(one("c10::BFloat16"), "bfloat16");
  EXPECT_EQ(one("c10::Half"), "float16");
  EXPECT_EQ(one("double"), "float64");
  EXPECT_EQ(one("long int"), "int64");
  EXPECT_EQ(one("unsigned char"), "uint8");
  EXPECT_EQ(one("c10::Float8_e5m2"), "float8_e5m2");
  EXPECT_EQ(one("c10::complex<float>"), "complex64");
  EXPECT_EQ(one("c10::qint8"), "float32");
  // A list has a type for each of its tensors.
  EXPECT_THAT(
      TypesOf(fmt::format("[0.5,[{0},{0}],{0}]", kOne),
              R"---(["Double","GenericList[Tensor(bool),Tensor(c10::Half)]","Tensor(int)"])---"),
      ElementsAre("bool", "float16", "int32"));
  // Types that do not fit the tensors count for none, and broken lists neither.
  EXPECT_THAT(TypesOf(fmt::format("[[{0},{0}],{0}]", kOne),
                      R"---(["GenericList[Tensor(bool)]","Tensor(bool)"])---"),
              ElementsAre("float32", "float32", "bool"));
  EXPECT_THAT(TypesOf(fmt::format("[{}]", kOne), R"---(["Tensor(bool)",1])---"),
              ElementsAre("float32"));
  EXPECT_THAT(TypesOf(fmt::format("[{}]", kOne), "7"), ElementsAre("float32"));
  EXPECT_THAT(TypesOf(fmt::format("[{}]", kOne), R"---(["Tensor(bool"])---"), ElementsAre("bool"));
}

// Nodes of schema 1.0.1 have the same contents in other fields.
TEST(ExecutionTraceTest, ReadsFieldsOfTheOldSchema) {
  const ExecutionTrace trace = ReadNodes(R"---({
"name": "aten::cat", "id": 7, "rf_id": 2517, "parent": 1, "fw_parent": 3, "seq_id": 40, "scope": 0,
"tid": 2, "fw_tid": 0, "op_schema": "aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
"input_shapes": [[[2,3],[3]],[]], "inputs": [[[1,10,0,6,4,"cuda:0"],[2,11,0,3,4,"cuda:0"]],0],
"input_types": ["GenericList[Tensor(float),Tensor(c10::BFloat16)]","Int"],
"outputs": [[5,8,2,9,4,"cuda:0"]], "output_shapes": [[9]], "output_types": ["Tensor(long int)"]})---");
  EXPECT_EQ(trace.broken, 0);
  ASSERT_THAT(trace.nodes, SizeIs(2));
  const ExecutionTrace::Node& node = trace.nodes[1];
  EXPECT_EQ(node.parent, 1);
  EXPECT_EQ(node.record, 2517);
  EXPECT_EQ(node.sequence, 40);
  EXPECT_EQ(node.thread, 2);
  EXPECT_EQ(node.schema, "aten::cat(Tensor[] tensors, int dim=0) -> Tensor");
  ASSERT_THAT(node.inputs, SizeIs(2));
  EXPECT_EQ(node.inputs[1].storage, 11);
  EXPECT_EQ(node.inputs[1].argument, 0u);
  EXPECT_THAT(node.inputs[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(node.inputs[1].dtype, DataType::kBfloat16);
  ASSERT_THAT(node.outputs, SizeIs(1));
  EXPECT_EQ(node.outputs[0].begin(), 8);
  EXPECT_EQ(node.outputs[0].dtype, DataType::kInt64);
}

TEST(ExecutionTraceTest, OrderIsByNumber) {
  const ExecutionTrace trace = ReadNodes(R"({"id": 9, "name": "b"},{"id": 3, "name": "a"})");
  EXPECT_EQ(trace.nodes[1].name, "a");
  EXPECT_EQ(trace.nodes[2].name, "b");
}

// An autograd number beyond 2^63 means that the node has none.
TEST(ExecutionTraceTest, UnsignedNumbers) {
  const ExecutionTrace trace = ReadNodes(
      R"({"id": 2, "name": "a", "attrs": [{"name": "seq_id", "value": 18446744073709551615}]})");
  EXPECT_EQ(trace.nodes[1].sequence, -1);
}

TEST(ExecutionTraceTest, TensorsInLists) {
  const auto refs =
      InputsOf(R"([[4,512],[[1,10,0,6,4,"cuda:0"],[2,11,0,3,4,"cuda:0"]],[3,12,0,1,4,"cuda"]])",
               "[[[],[]],[[2,3],[3]],[]]");
  ASSERT_THAT(refs, SizeIs(3));
  EXPECT_EQ(refs[0].storage, 10);
  EXPECT_EQ(refs[0].argument, 1u);
  EXPECT_THAT(refs[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(refs[1].argument, 1u);
  EXPECT_THAT(refs[1].shape, ElementsAre(3));
  EXPECT_EQ(refs[2].argument, 2u);
  EXPECT_EQ(refs[2].device, 0);
  EXPECT_THAT(refs[2].shape, IsEmpty());  // a single number has no dimensions
}

// If the given shape has another number of elements than the tensor, or is missing, the shape is
// the number of elements.
TEST(ExecutionTraceTest, ShapesFitTheElements) {
  EXPECT_THAT(InputsOf(R"([[1,10,0,6,4,"cuda:0"]])", "[[2,4]]")[0].shape, ElementsAre(6));
  EXPECT_THAT(InputsOf(R"([[1,10,0,6,4,"cuda:0"]])", "[]")[0].shape, ElementsAre(6));
  EXPECT_THAT(InputsOf(R"([[1,10,0,6,4,"cuda:0"]])", "[[-2,-3]]")[0].shape, ElementsAre(6));
  EXPECT_THAT(InputsOf(R"([[1,10,0,0,4,"cuda:0"]])", "[[0,9223372036854775807]]")[0].shape,
              ElementsAre(0));
  // The shape of another argument is not used.
  EXPECT_THAT(InputsOf(R"([[1,10,0,6,4,"cuda:0"],[2,11,0,6,4,"cuda:0"]])", "[[1],[2,3]]")[0].shape,
              ElementsAre(6));
}

TEST(ExecutionTraceTest, WhatIsNoTensor) {
  for (const char* value : {"[1,2,3,4,5]", R"([1,2,3,4.5,5,"cuda:0"])", R"([1,2,3,4,5,"meta"])",
                            R"(["cuda:0"])", "[]", "1", "null"}) {
    EXPECT_THAT(InputsOf(fmt::format("[{}]", value), "[]"), IsEmpty()) << value;
  }
}

TEST(ExecutionTraceTest, LeavesBrokenNodesOut) {
  std::string deep = "1";
  for (int i = 0; i < 40; ++i) deep = "[" + deep + "]";
  const auto with_values = [](std::string_view values) {
    return fmt::format(R"({{"id": 2, "name": "n", "inputs": {{"values": [{}]}}}})", values);
  };
  for (const std::string& node : {
           std::string(R"({"id": "2", "name": "n"})"),
           std::string(R"({"id": 2})"),
           std::string(R"({"id": 2, "name": 5})"),
           std::string(R"({"id": 2, "name": "n", "inputs": 5})"),
           std::string(R"({"id": 2, "name": "n", "input_shapes": {}})"),
           std::string(R"({"id": 2, "name": "n", "op_schema": 5})"),
           std::string(R"({"id": 2, "name": "n", "attrs": [5]})"),
           std::string("{\"id\": 2, \"name\": \"n\", \"inputs\": {\"values\": [\n"),  // cut off
           with_values(R"([1,2,-3,4,5,"cuda:0"])"),
           with_values(R"([1,2,3,4,65,"cuda:0"])"),
           with_values(R"([1,2,3,4611686018427387904,4,"cuda:0"])"),
           with_values(deep),
       }) {
    const ExecutionTrace trace = ReadNodes(node + "\n{\"id\": 3, \"name\": \"after\"}");
    EXPECT_EQ(trace.broken, 1) << node;
    ASSERT_THAT(trace.nodes, SizeIs(2)) << node;
    EXPECT_EQ(trace.nodes[1].name, "after") << node;
  }
}

// Operands beyond 2^60 bytes in total are rejected, so that sums over all operands do not overflow.
TEST(ExecutionTraceTest, TotalOfOperands) {
  std::string nodes;
  for (int i = 2; i < 10; ++i) {
    nodes += fmt::format(
        R"({{"id": {}, "name": "n", "inputs": {{"values": [[1,2,0,4503599627370496,64,"cuda:0"]]}}}})",
        i);
  }
  const ExecutionTrace trace = ReadNodes(nodes);
  EXPECT_THAT(trace.nodes, SizeIs(1 + 4));
  EXPECT_EQ(trace.broken, 4);
}

TEST(ExecutionTraceTest, LeavesBrokenNodesOfTheOldSchemaOut) {
  const ExecutionTrace trace = Read(R"({"schema": "1.0.1", "nodes": [
{"name": "a", "id": 1}, {"name": "b", "id": 2, "inputs": [[1,
{"name": "c", "id": 3}]})");
  EXPECT_EQ(trace.broken, 1);
  ASSERT_THAT(trace.nodes, SizeIs(2));
  EXPECT_EQ(trace.nodes[1].name, "c");
}

// A trace whose writer was stopped keeps its complete nodes.
TEST(ExecutionTraceTest, EndsEarly) {
  for (const char* end : {"", ",\n", ",\n{\"id\": 2, \"name"}) {
    const ExecutionTrace trace = Read(std::string(R"({"nodes": [{"id": 1, "name": "a"})") + end);
    EXPECT_THAT(trace.nodes, SizeIs(1)) << end;
    EXPECT_EQ(trace.broken, 1) << end;
  }
}

TEST(ExecutionTraceTest, RefusesOthers) {
  EXPECT_THAT(InputErrorOf([] { Read("{}"); }),
              HasSubstr("e.json: there is no such array, expected an execution trace of PyTorch "
                        "with an array 'nodes'"));
  for (const char* text : {R"({"nodes": []})", R"({"nodes": [{"id": 1}]})"}) {
    EXPECT_THAT(InputErrorOf([&] { Read(text); }),
                HasSubstr("e.json: no node of schema ? can be read, expected an execution trace"));
  }
  EXPECT_THAT(InputErrorOf([&] { Read(R"({"schema": "7.1\n", "nodes": [{"number": 1}]})"); }),
              HasSubstr("no node of schema 7.1\\x0a can be read, expected an execution trace of "
                        "PyTorch (schemas 1.0.1 to 1.1.1)"));
}

}  // namespace
}  // namespace spillway::testing
