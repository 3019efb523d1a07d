// Tests of batch normalisation and forks on the CPU. Results are compared with a naive reference
// and backward with central differences. Recomputation relies on the tested properties.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/backend/cpu/cpu_kernels_fixture.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

class BatchNormTest : public CpuKernelsTest {
 protected:
  BatchNormOperands RandomOperands(const BatchNormShape& shape) {
    const size_t count = shape.elements(), channels = shape.channels;
    BatchNormOperands v{Random(count), Random(channels), Random(channels), Random(count),
                        Random(count), Random(channels), Random(channels)};
    for (float& variance : v.running_var) variance = std::abs(variance);
    return v;
  }
};

TEST_F(BatchNormTest, EveryStepIsAsTheReferenceSays) {
  for (const BatchNormShape& shape : kBatchNormShapes) {
    SCOPED_TRACE(::testing::Message() << shape.batch << "x" << shape.channels << "x" << shape.height
                                      << "x" << shape.width);
    const BatchNormOperands v = RandomOperands(shape);
    const BackwardCase training = BatchNormTraining(shape, v);
    Check(training.test, training.want);
    const BackwardCase inference = BatchNormInference(shape, v);
    Check(inference.test, inference.want);
    for (const BackwardMode& mode : kModes) {
      const BackwardCase backward = BatchNormBackward(shape, mode, v);
      Check(backward.test, backward.want);
      if (mode.fused) continue;
      const BackwardCase adding = AddingTo(backward, mode, v.weight, v.bias);
      Check(adding.test, adding.want);
    }
  }
}

TEST_F(BatchNormTest, GradientsAreThoseOfForward) {
  for (const BatchNormShape& shape : kBatchNormShapes) {
    if (shape.batch * shape.height * shape.width == 1) continue;
    const BatchNormOperands v = RandomOperands(shape);
    const size_t channels = shape.channels;
    const KernelCase forward = BatchNormTraining(shape, v).test;
    const KernelCase backward = BatchNormBackward(shape, kModes[0], v).test;
    std::vector<Array> inputs = AllToDouble(forward.inputs);
    const std::vector<Array> outputs = Execute<double>(forward.op, inputs, forward.outputs);
    std::vector<Array> operands = AllToDouble(backward.inputs);
    operands[3] = outputs[1];
    operands[4] = outputs[2];
    const std::vector<Array> gradients = Execute<double>(backward.op, operands, backward.outputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckInputGradient(forward.op, inputs, i, ToDouble(v.dy), gradients[i],
                         {{channels, -1}, {channels, -1}});
    }
  }
}

TEST_F(CpuKernelsTest, LrnBackwardMayOverwriteTheGradient) {
  for (const int size : {1, 3, 5}) {
    const reference::Lrn lrn{3, 11, 30, size, 0.3, 0.75, 2};
    const Values x = Random(3 * 11 * 30), dy = Random(x.size());
    const Array y = lrn.Forward(ToDouble(x));
    const Op op = MakeOp(OpType::kLrn, Phase::kBackward, 3,
                         {{"channels", 11},
                          {"height", 6},
                          {"width", 5},
                          {"size", static_cast<double>(size)},
                          {"alpha", 0.3},
                          {"beta", 0.75},
                          {"k", 2}});
    Check({op, {x, ToFloat(y), dy}, {{x.size(), 2}}}, {lrn.Backward(ToDouble(x), ToDouble(dy))});
  }
}

// One channel of two samples with values 1 and 3: mean 2, variance 1, normalised values -1 and 1.
TEST_F(BatchNormTest, Drawn) {
  const std::vector<Attribute> attributes{{"channels", 1}, {"height", 1},   {"width", 1},
                                          {"epsilon", 0},  {"momentum", 1}, {"training", 1}};
  const Op forward = MakeOp(OpType::kBatchNorm, Phase::kForward, 2, attributes);
  Check({forward, {{1, 3}, {10}, {5}}, {{2, -1}, {1, -1}, {1, -1}}}, {{-5, 15}, {2}, {1}});
  // dy is parallel to the normalised input, so dx is 0. The unbiased variance is 2.
  const Op backward =
      MakeOp(OpType::kBatchNorm, Phase::kBackward, 2, With(attributes, {true, false, false}));
  Check({backward,
         {{1, 3}, {10}, {2, 4}, {2}, {1}, {7}, {7}},
         {{2, -1}, {1, -1}, {1, -1}, {1, 5}, {1, 6}}},
        {{0, 0}, {2}, {6}, {2}, {2}});
}

// Forward may run again to recompute y. It has no state and gives the same bits wherever its
// operands lie.
TEST_F(BatchNormTest, RunningForwardAgainChangesNothing) {
  const BatchNormShape shape{4, 37, 9, 1};
  const BatchNormOperands v = RandomOperands(shape);
  const KernelCase forward = BatchNormTraining(shape, v).test;
  const std::vector<Array> inputs = AllToDouble(forward.inputs);
  const std::vector<Array> first = Execute<float>(forward.op, inputs, forward.outputs);
  for (const size_t skip : {1, 3}) {
    EXPECT_EQ(Execute<float>(forward.op, inputs, forward.outputs, skip), first);
  }
}

TEST_F(BatchNormTest, BadOperandsAreNamed) {
  const BatchNormShape shape{2, 3, 4, 5};
  const BatchNormOperands v = RandomOperands(shape);
  KernelCase test = BatchNormTraining(shape, v).test;
  const auto run = [&] { return Execute<float>(test.op, AllToDouble(test.inputs), test.outputs); };
  test.outputs.pop_back();
  EXPECT_THROW(run(), InputError);
  test = BatchNormBackward(shape, kModes[0], v).test;
  test.inputs[4].pop_back();
  EXPECT_THROW(run(), InputError);
  test = BatchNormInference(shape, v).test;
  test.op.attributes.erase(test.op.attributes.begin() + 3);  // epsilon
  EXPECT_THROW(run(), InputError);
}

TEST_F(CpuKernelsTest, Fork) {
  const Values x{1, 2, 3, 4, 5, 6}, b{10, 20, 30, 40, 50, 60}, c{7, 7, 7, 7, 7, 7};
  std::vector<Attribute> attributes{{"elements", 3}, {"parts", 3}};
  const Op forward = MakeOp(OpType::kFork, Phase::kForward, 2, attributes);
  const Array copy = ToDouble(x), sum = copy + ToDouble(b) + ToDouble(c);
  for (const int shared : {-1, 0}) {
    Check({forward, {x}, {{6, shared}, {6, -1}, {6, -1}}}, {copy, copy, copy});
    Check({forward, {x}, {{6, -1}, {6, shared}, {6, 0}}}, {copy, copy, copy});
    Check({MakeOp(OpType::kFork, Phase::kBackward, 2, attributes), {x, b, c}, {{6, shared}}},
          {sum});
  }
  attributes.push_back({"accumulate", 1});
  Check({MakeOp(OpType::kFork, Phase::kBackward, 2, attributes), {x, b, c, x}, {{6, 3}}},
        {sum + copy});
  EXPECT_THROW(Execute<float>(forward, {Array(6)}, {{6, -1}, {6, -1}}), InputError);
}

// Residual sums share one gradient; a sum with the image has one gradient only.
TEST_F(CpuKernelsTest, AddLeavesSharedGradientsAlone) {
  const Op op = MakeOp(OpType::kAdd, Phase::kBackward, 2, {{"elements", 3}});
  const Values dy{1, 2, 3, 4, 5, 6};
  Check({op, {dy}, {{6, 0}, {6, 0}}}, {ToDouble(dy), ToDouble(dy)});
  Check({op, {dy}, {{6, -1}}}, {ToDouble(dy)});
}

}  // namespace
}  // namespace spillway::testing
