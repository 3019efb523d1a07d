// Ops with their operands on the host, shared by the tests of all kernels.

#ifndef SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_
#define SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/reference.h"
#include "traces/trace.h"

namespace spillway::testing {

using reference::Array;
using Values = std::vector<float>;

inline constexpr double kLearningRate = 0.25;  // large, so that a wrong update shows
inline constexpr uint64_t kSeed = 11;

// An op with its operands on the host.
struct KernelCase {
  struct Output {
    size_t elements = 0;
    int input = -1;  // the input whose memory this output shares, or -1
  };
  Op op;
  std::vector<Values> inputs;
  std::vector<Output> outputs;
};

inline Op MakeOp(OpType type, Phase phase, int64_t batch, std::vector<Attribute> attributes) {
  Op op;
  op.name = std::string(Name(type)) + "." + std::string(Name(phase));
  op.layer = LayerId{5};
  op.type = type;
  op.phase = phase;
  op.batch = batch;
  op.attributes = std::move(attributes);
  const char* slot = phase == Phase::kForward    ? "fwd"
                     : phase == Phase::kBackward ? "bwd"
                                                 : "update";
  op.slots = {{slot, op.name, 0, Bytes(0)}};
  return op;
}

inline Values ToFloat(const Array& values) { return {values.begin(), values.end()}; }
inline Array ToDouble(const Values& values) { return {values.begin(), values.end()}; }
inline Array operator+(Array a, const Array& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
inline Array operator*(double factor, Array a) {
  for (double& value : a) value *= factor;
  return a;
}

// The three choices of a backward step of a layer with parameters: whether it computes dx, adds to
// an old dx, and updates the parameters itself.
struct BackwardMode {
  bool needs_dx, accumulate, fused;
};
inline constexpr BackwardMode kModes[] = {{true, false, false},  {true, true, false},
                                          {true, false, true},   {true, true, true},
                                          {false, false, false}, {false, false, true}};

inline std::vector<Attribute> With(std::vector<Attribute> attributes, const BackwardMode& mode) {
  attributes.push_back({"needs_dx", mode.needs_dx ? 1.0 : 0.0});
  attributes.push_back({"accumulate", mode.accumulate ? 1.0 : 0.0});
  attributes.push_back({"fused_update", mode.fused ? 1.0 : 0.0});
  if (mode.fused) attributes.push_back({"learning_rate", kLearningRate});
  return attributes;
}

// Operands and expected outputs in the order of the op's contract. The step is a backward step
// unless the function that makes the case says otherwise.
struct BackwardCase {
  KernelCase test;
  std::vector<Array> want;
};

inline BackwardCase MakeBackward(Op op, const BackwardMode& mode, const Values& x,
                                 const Values& weight, const Values& bias, const Values& dy,
                                 const Values& old_dx, const Array& dx, const Array& dweight,
                                 const Array& dbias) {
  BackwardCase result;
  KernelCase& test = result.test;
  test.op = std::move(op);
  test.inputs = {x, weight, dy};
  const bool has_bias = !bias.empty();
  if (mode.fused && has_bias) test.inputs.push_back(bias);
  if (mode.accumulate) test.inputs.push_back(old_dx);
  if (mode.needs_dx) {
    const int shared = mode.accumulate ? static_cast<int>(test.inputs.size()) - 1 : -1;
    test.outputs.push_back({dx.size(), shared});
    result.want.push_back(mode.accumulate ? dx + ToDouble(old_dx) : dx);
  }
  test.outputs.push_back({dweight.size(), mode.fused ? 1 : -1});
  result.want.push_back(mode.fused ? ToDouble(weight) + -kLearningRate * dweight : dweight);
  if (has_bias) {
    test.outputs.push_back({dbias.size(), mode.fused ? 3 : -1});
    result.want.push_back(mode.fused ? ToDouble(bias) + -kLearningRate * dbias : dbias);
  }
  return result;
}

// The dimensions of a batch normalisation.
struct BatchNormShape {
  int batch, channels, height, width;

  reference::BatchNorm Reference() const { return {batch, channels, height * width, 1e-3, 0.3}; }
  size_t elements() const { return static_cast<size_t>(batch) * channels * height * width; }
  std::vector<Attribute> Attributes() const {
    return {{"channels", static_cast<double>(channels)},
            {"height", static_cast<double>(height)},
            {"width", static_cast<double>(width)},
            {"epsilon", Reference().epsilon},
            {"momentum", Reference().momentum}};
  }
};
inline constexpr BatchNormShape kBatchNormShapes[] = {
    {2, 3, 4, 5}, {3, 1, 1, 7}, {5, 4, 1, 1}, {1, 2, 3, 3}, {4, 37, 9, 1}};

struct BatchNormOperands {
  Values x, weight, bias, dy, old_dx, running_mean, running_var;
};

// Each of these functions returns one step of a batch normalisation with its expected outputs.
inline BackwardCase BatchNormTraining(const BatchNormShape& shape, const BatchNormOperands& v) {
  const reference::BatchNorm norm = shape.Reference();
  const Array x = ToDouble(v.x), mean = norm.Mean(x), variance = norm.Variance(x);
  BackwardCase made;
  std::vector<Attribute> attributes = shape.Attributes();
  attributes.push_back({"training", 1});
  made.test.op = MakeOp(OpType::kBatchNorm, Phase::kForward, shape.batch, std::move(attributes));
  made.test.inputs = {v.x, v.weight, v.bias};
  made.test.outputs = {{x.size(), -1}, {mean.size(), -1}, {mean.size(), -1}};
  made.want = {norm.Forward(x, mean, variance, ToDouble(v.weight), ToDouble(v.bias)), mean,
               norm.InvStd(variance)};
  return made;
}

inline BackwardCase BatchNormInference(const BatchNormShape& shape, const BatchNormOperands& v) {
  BackwardCase made;
  std::vector<Attribute> attributes = shape.Attributes();
  attributes.push_back({"training", 0});
  made.test.op = MakeOp(OpType::kBatchNorm, Phase::kForward, shape.batch, std::move(attributes));
  made.test.inputs = {v.x, v.weight, v.bias, v.running_mean, v.running_var};
  made.test.outputs = {{v.x.size(), -1}};
  made.want = {shape.Reference().Forward(ToDouble(v.x), ToDouble(v.running_mean),
                                         ToDouble(v.running_var), ToDouble(v.weight),
                                         ToDouble(v.bias))};
  return made;
}

inline BackwardCase BatchNormBackward(const BatchNormShape& shape, const BackwardMode& mode,
                                      const BatchNormOperands& v) {
  const reference::BatchNorm norm = shape.Reference();
  const Array x = ToDouble(v.x), mean = norm.Mean(x), variance = norm.Variance(x);
  const auto gradients = norm.Backward(x, ToDouble(v.weight), ToDouble(v.dy));
  BackwardCase made;
  KernelCase& test = made.test;
  test.op =
      MakeOp(OpType::kBatchNorm, Phase::kBackward, shape.batch, With(shape.Attributes(), mode));
  test.inputs = {
      v.x,          v.weight, v.dy, ToFloat(mean), ToFloat(norm.InvStd(variance)), v.running_mean,
      v.running_var};
  if (mode.fused) test.inputs.push_back(v.bias);
  if (mode.accumulate) test.inputs.push_back(v.old_dx);
  if (mode.needs_dx) {
    const int shared = mode.accumulate ? static_cast<int>(test.inputs.size()) - 1 : -1;
    test.outputs.push_back({x.size(), shared});
    made.want.push_back(mode.accumulate ? gradients.dx + ToDouble(v.old_dx) : gradients.dx);
  }
  const size_t channels = mean.size();
  test.outputs.push_back({channels, mode.fused ? 1 : -1});
  test.outputs.push_back({channels, mode.fused ? 7 : -1});
  test.outputs.push_back({channels, 5});
  test.outputs.push_back({channels, 6});
  const auto parameter = [&](const Values& old, const Array& gradient) {
    return mode.fused ? ToDouble(old) + -kLearningRate * gradient : gradient;
  };
  made.want.push_back(parameter(v.weight, gradients.dweight));
  made.want.push_back(parameter(v.bias, gradients.dbias));
  made.want.push_back(norm.Move(ToDouble(v.running_mean), mean, 1));
  made.want.push_back(norm.Move(ToDouble(v.running_var), variance, norm.Unbiased()));
  return made;
}

// Returns the step with the gradients of weight and bias added to those given. REQUIRES: `mode`, of
// which the step is, has no fused update.
inline BackwardCase AddingTo(BackwardCase made, const BackwardMode& mode, const Values& old_dweight,
                             const Values& old_dbias) {
  size_t output = mode.needs_dx ? 1 : 0;
  KernelCase& test = made.test;
  const auto accumulate =
      std::find_if(test.op.attributes.begin(), test.op.attributes.end(),
                   [](const Attribute& attribute) { return attribute.name == "accumulate"; });
  for (const Values* old : {&old_dweight, &old_dbias}) {
    accumulate->value += static_cast<double>(1 << output);
    test.inputs.push_back(*old);
    test.outputs[output].input = static_cast<int>(test.inputs.size()) - 1;
    made.want[output] = made.want[output] + ToDouble(*old);
    ++output;
  }
  return made;
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_
