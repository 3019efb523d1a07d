#include "experiments/changes/autocast_step.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

// A step in fp32 whose recording says what autograd saved:
//
//   x, w --mm--> y --native_layer_norm(g)--> z --gelu--> a --mm(w)--> u --add(z)--> r --mean--> l
//
// x to r have 2 x 64 numbers each, w has 64 x 64, and g has 64.
Trace Step() {
  using enum TensorKind;
  testing::TraceBuilder builder;
  const auto tensor = [&](const std::string& name, TensorKind kind, int64_t elements) {
    builder.Tensor(name, kind, 4 * elements);
  };
  tensor("x", kInput, 128);
  tensor("w", kParameter, 4096);
  tensor("g", kParameter, 64);
  for (const char* name : {"y", "z", "a", "u", "r"}) tensor(name, kActivation, 128);
  tensor("l", kActivation, 1);
  for (const char* name : {"dr", "da", "dz1", "dz", "dy"}) tensor(name, kGradient, 128);
  for (const char* name : {"dw1", "dw2"}) tensor(name, kGradient, 4096);
  tensor("dw", kParameterGradient, 4096);
  tensor("dg", kParameterGradient, 64);
  const auto matmul = OpType::kMatmul;
  builder.Op("mm", Phase::kForward, {"x", "w"}, {"y"}, matmul);
  builder.Op("native_layer_norm", Phase::kForward, {"y", "g"}, {"z"});
  builder.Op("gelu", Phase::kForward, {"z"}, {"a"});
  builder.Op("mm.2", Phase::kForward, {"a", "w"}, {"u"}, matmul);
  builder.Op("add.u", Phase::kForward, {"u", "z"}, {"r"});
  builder.Op("mean", Phase::kForward, {"r"}, {"l"});
  const auto backward = Phase::kBackward;
  builder.Op("div", backward, {"l"}, {"dr"}, OpType::kOther, "mean");
  builder.Op("mm.da", backward, {"dr", "w"}, {"da"}, matmul, "mm.2");
  builder.Op("mm.dw2", backward, {"a", "dr"}, {"dw2"}, matmul, "mm.2");
  builder.Op("gelu_backward", backward, {"da", "z"}, {"dz1"}, OpType::kOther, "gelu");
  builder.Op("add.dz", backward, {"dr", "dz1"}, {"dz"}, OpType::kOther, "gelu");
  builder.Op("native_layer_norm_backward", backward, {"dz", "y", "g"}, {"dy", "dg"}, OpType::kOther,
             "native_layer_norm");
  builder.Op("mm.dw1", backward, {"x", "dy"}, {"dw1"}, matmul, "mm");
  builder.Op("add.dw", backward, {"dw2", "dw1"}, {"dw"}, OpType::kOther, "mm");
  builder.Op("sgd", Phase::kUpdate, {"w", "dw", "g", "dg"}, {"w", "g"});
  Trace trace = builder.Build();
  for (Tensor& each : trace.tensors) each.shape = {each.size.count() / 4};
  trace.recording = {"PyTorch", "", Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) {
    op.recorded.emplace();
    op.slots[0] = {"op", "aten::" + op.name.substr(0, op.name.find('.')), 0, Bytes(1000)};
  }
  trace.saved = {{builder.Id("x"), 0, {12}}};
  trace.Validate();
  return trace;
}

std::string Name(const Trace& trace, TensorId id) {
  const Tensor& tensor = trace.tensor(id);
  const bool half = tensor.dtype == DataType::kBfloat16;
  EXPECT_EQ(tensor.size.count(), (half ? 2 : 4) * tensor.shape[0]) << tensor.name;
  return tensor.name.substr(0, tensor.name.find('.')) + (half ? ":16" : "");
}

// Returns "y:16 = mm x:16 w:16" for a product of bf16 tensors.
std::vector<std::string> TextOf(const Trace& trace) {
  std::vector<std::string> text;
  for (const Op& op : trace.ops) {
    std::string line;
    for (const TensorId id : op.outputs) line += Name(trace, id) + " ";
    line += "= " + op.slots[0].signature.substr(6);
    for (const TensorId id : op.inputs) line += " " + Name(trace, id);
    text.push_back(line);
  }
  return text;
}

std::optional<Trace> Autocast(const Trace& trace, std::string* why_not = nullptr) {
  std::string ignored;
  return UnderAutocast(trace, testing::RoundDevice(), testing::FixedCost(),
                       why_not == nullptr ? ignored : *why_not);
}

TEST(AutocastStepTest, ProductsInBfloat16AndNormsInFp32) {
  EXPECT_THAT(
      TextOf(Autocast(Step()).value()),
      ElementsAre("x:16 = _to_copy x", "w:16 = _to_copy w", "y:16 = mm x:16 w:16",
                  "y = _to_copy y:16", "z = native_layer_norm y g",          //
                  "a = gelu z", "a:16 = _to_copy a", "u:16 = mm a:16 w:16",  // w is cast once
                  "r = add u:16 z", "l = mean r",                            //
                  "dr = div l", "dr:16 = _to_copy dr", "da:16 = mm dr:16 w:16",
                  "dw2:16 = mm a:16 dr:16", "da = _to_copy da:16", "dw2 = _to_copy dw2:16",
                  "dz1 = gelu_backward da z", "dz = add dr dz1",
                  "dy dg = native_layer_norm_backward dz y g", "dy:16 = _to_copy dy",
                  "dw1:16 = mm x:16 dy:16", "dw1 = _to_copy dw1:16", "dw = add dw2 dw1",
                  "w g = sgd w dw g dg"));
}

// Autocast keeps the copies of weights until forward ends. Autograd keeps what it saved until the
// derivative is computed: this one, which mm.da reads, until mm.dw2.
TEST(AutocastStepTest, CopiesOfWeightsLiveThroughoutForward) {
  Trace trace = Step();
  const Trace whole = Autocast(trace).value();
  for (const Tensor& tensor : whole.tensors) {
    if (!tensor.name.starts_with("w.bfloat16")) continue;
    EXPECT_EQ(whole.op(tensor.held_until.value()).name, "mm.dw2");
  }
  std::erase_if(trace.ops, [](const Op& op) { return op.phase != Phase::kForward; });
  trace.saved = {{TensorId{0}, 0, {}}};
  trace.training = false;
  const Trace cast = Autocast(trace).value();
  const auto copy = std::ranges::find_if(
      cast.tensors, [](const Tensor& tensor) { return tensor.name.starts_with("w.bfloat16"); });
  ASSERT_NE(copy, cast.tensors.end());
  EXPECT_EQ(copy->held_until, OpId(cast.ops.size() - 1));
}

TEST(AutocastStepTest, WeightsThatTheStepDoesNotUpdateAreCastAnew) {
  Trace trace = Step();
  trace.ops.back().outputs = {TensorId{2}};
  EXPECT_EQ(std::ranges::count(TextOf(Autocast(trace).value()), "w:16 = _to_copy w"), 2);
}

// A tensor that autograd saved in fp32 goes once it is cast; one that the program holds stays.
TEST(AutocastStepTest, OnlyTheCopyIsHeld) {
  Trace trace = Step();
  trace.tensors[5].held_until = OpId{8};   // a, until mm.dw2 is done
  trace.tensors[4].held_until = OpId{13};  // z
  const Trace cast = Autocast(trace).value();
  const auto held = [&](size_t tensor) {
    return cast.op(*cast.tensors[tensor].held_until).slots[0].signature;
  };
  EXPECT_EQ(held(5), "aten::_to_copy");
  EXPECT_EQ(held(4), "aten::add");
}

TEST(AutocastStepTest, RotaryTablesStayInFp32) {
  Trace trace = Step();
  trace.ops[7].layer = trace.ops[8].layer = trace.ops[9].layer;
  const std::vector<std::string> text = TextOf(Autocast(trace).value());  // mm.2 has no backward
  EXPECT_EQ(std::ranges::count(text, "u = mm a w"), 1);
}

TEST(AutocastStepTest, OtherRecordingsAreNotRewritten) {
  std::string why_not;
  Trace trace = Step();
  trace.ops[2].slots[0].signature = "aten::_safe_softmax 4x4";
  EXPECT_FALSE(Autocast(trace, &why_not));
  EXPECT_THAT(why_not, ::testing::HasSubstr("record the step under it"));
  trace = Step();
  trace.tensors[3].dtype = DataType::kBfloat16;
  EXPECT_FALSE(Autocast(trace));
  trace = Step();
  trace.saved.clear();
  EXPECT_FALSE(Autocast(trace));
}

}  // namespace
}  // namespace spillway::testing
