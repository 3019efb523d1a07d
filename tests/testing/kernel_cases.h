// What the tests of all kernels share: ops with their operands on the host.

#ifndef SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_
#define SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/reference.h"
#include "traces/trace.h"

namespace spillway {

using reference::Array;
using Values = std::vector<float>;

inline constexpr double kLearningRate = 0.25;  // large, so that a wrong update shows
inline constexpr uint64_t kSeed = 11;

// An op with its operands on the host.
struct Case {
  struct Output {
    size_t elements = 0;
    int input = -1;  // the input whose memory it shares, or -1
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

// What a backward step of a layer with parameters does.
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

// The operands and expected outputs of a backward step with weight and bias, in contract order.
struct BackwardCase {
  Case test;
  std::vector<Array> want;
};

inline BackwardCase MakeBackward(Op op, const BackwardMode& mode, const Values& x,
                                 const Values& weight, const Values& bias, const Values& dy,
                                 const Values& old_dx, const Array& dx, const Array& dweight,
                                 const Array& dbias) {
  BackwardCase result;
  Case& test = result.test;
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

}  // namespace spillway

#endif  // SPILLWAY_TESTS_TESTING_KERNEL_CASES_H_
