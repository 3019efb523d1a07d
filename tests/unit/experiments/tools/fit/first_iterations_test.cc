#include "experiments/tools/fit/first_iterations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

// A step that keeps a weight w and the optimizer's state m:
//
//   op    fwd     bwd     update
//   x     [read]...........]        held until bwd
//   y     [write read]
//   g             [write read]
//   workspace 7 of fwd
Trace Step() {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1)
      .Tensor("w", TensorKind::kParameter, 20)
      .Tensor("y", TensorKind::kActivation, 3)
      .Tensor("g", TensorKind::kParameterGradient, 4)
      .Tensor("m", TensorKind::kOptimizerState, 50)
      .Tensor("unused", TensorKind::kOptimizerState, 60)
      .Tensor("view", TensorKind::kActivation, 3, "y");
  builder.Op("fwd", Phase::kForward, {"x", "w"}, {"y"});
  builder.Op("bwd", Phase::kBackward, {"view"}, {"g"});
  builder.Op("update", Phase::kUpdate, {"g", "m"}, {"w", "m"});
  Trace trace = builder.Build();
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) op.recorded.emplace();
  trace.ops[0].recorded->workspace = Bytes(7);
  trace.tensors[Index(builder.Id("x"))].held_until = OpId{1};
  trace.Validate();
  return trace;
}

// Returns the sizes of all requests and frees in order, such as "+20 -3".
std::string TextOf(const AllocationLog& log) {
  std::string text;
  for (const AllocationStep& step : log.steps()) {
    text += (step.free ? " -" : " +") + std::to_string(step.size.count());
  }
  return text;
}

// Requests come from the pools of their lanes.
TEST(FirstIterationsTest, KnowsLanes) {
  Trace step = Step();
  step.ops[0].lane = 1;      // with a workspace of 7
  step.tensors[2].lane = 2;  // y, of 3
  step.recording->requests = {{Bytes(9), 1, 3}};
  const AllocationLog log = RequestsOfFirst(step, 1);
  std::string text;
  for (const AllocationStep& one : log.steps()) {
    if (!one.free) text += fmt::format(" {}:{}", one.size.count(), one.stream);
  }
  EXPECT_EQ(text, " 9:3 20:0 60:0 1:0 3:2 7:1 4:0 50:0");
}

// The optimizer's state is allocated in the first update and stays. The gradient is freed after its
// last use.
TEST(FirstIterationsTest, StateIsMadeAtTheFirstUpdate) {
  const std::string again = " +1 +3 +7 -7 +4 -1 -3";
  EXPECT_EQ(TextOf(RequestsOfFirst(Step(), 1)), " +20 +60" + again + " +50 -4");
  EXPECT_EQ(TextOf(RequestsOfFirst(Step(), 2)), " +20 +60" + again + " +50 -4" + again + " -4");
  EXPECT_EQ(TextOf(RequestsOfFirst(Step(), 0)), " +20 +60");
}

// The program drew w with 9 bytes of scratch, and holds 5 bytes that no op uses.
TEST(FirstIterationsTest, BeginsWithTheRequestsBefore) {
  Trace trace = Step();
  trace.recording->requests = {{Bytes(9), 2}, {Bytes(20)}, {Bytes(5)}, {Bytes(8), 4}};
  trace.tensors[1].request = 1;
  trace.Validate();
  EXPECT_EQ(TextOf(RequestsOfFirst(trace, 0)), " +9 +20 -9 +5 +8 -8 +60");
  trace.tensors[1].size = Bytes(10);  // as a change of the program may make it
  EXPECT_EQ(TextOf(RequestsOfFirst(trace, 0)), " +9 +10 -9 +5 +8 -8 +60");
  trace.tensors[1].request.reset();
  trace.tensors[0].request = 1;
  trace.tensors[0].size = Bytes();  // x is taken out of the memory
  EXPECT_EQ(TextOf(RequestsOfFirst(trace, 0)), " +9 -9 +5 +8 -8 +10 +60");
}

// A library's workspace, which an op without inputs stands for, is allocated in the first iteration
// and stays.
TEST(FirstIterationsTest, AWorkspaceIsMadeWhereItIsFirstUsed) {
  Trace trace = Step();
  Op op = trace.ops[0];
  op.name = "workspace";
  op.inputs.clear();
  op.outputs = {TensorId{5}};
  op.recorded->workspace = Bytes();
  trace.ops.insert(trace.ops.begin() + 1, op);
  for (Tensor& tensor : trace.tensors) tensor.held_until.reset();
  trace.Validate();
  const std::string again = " +1 +3 +7 -7 -1";
  EXPECT_EQ(TextOf(RequestsOfFirst(trace, 2)),
            " +20" + again + " +60 +4 -3 +50 -4" + again + " +4 -3 -4");
}

}  // namespace
}  // namespace spillway::testing
