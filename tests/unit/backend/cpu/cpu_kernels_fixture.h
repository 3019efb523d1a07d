// The fixture of the CPU kernel tests. It executes an op on double arrays in float or double and
// compares gradients with central differences.

#ifndef SPILLWAY_TESTS_UNIT_BACKEND_CPU_CPU_KERNELS_FIXTURE_H_
#define SPILLWAY_TESTS_UNIT_BACKEND_CPU_CPU_KERNELS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "tests/testing/kernel_cases.h"
#include "traces/ops/op_table.h"

namespace spillway::testing {

struct alignas(64) Line {
  std::byte bytes[64];
};

// An operand that starts `skip` lines into its memory. Its bytes are initially 0xff, so its values
// are NaN.
struct Buffer {
  Buffer(size_t size, size_t skip) : lines(skip + size / sizeof(Line) + 1) {
    std::memset(lines.data(), 0xff, lines.size() * sizeof(Line));
    span = {lines[skip].bytes, size};
  }
  std::vector<Line> lines;
  std::span<std::byte> span;
};

// Runs the op in `Scalar` and returns its outputs. Labels and tokens are passed as numbers.
template <typename Scalar>
std::vector<Array> Execute(const Op& op, const std::vector<Array>& inputs,
                           const std::vector<KernelCase::Output>& outputs, size_t skip = 0) {
  std::vector<Buffer> buffers;
  std::vector<std::span<std::byte>> in, out;
  for (const Array& values : inputs) {
    const bool labels =
        in.size() == InputIndex(op, Role::kLabels) || in.size() == InputIndex(op, Role::kIndices);
    buffers.emplace_back(values.size() * (labels ? sizeof(int32_t) : sizeof(Scalar)), skip);
    in.push_back(buffers.back().span);
    for (size_t i = 0; i < values.size(); ++i) {
      if (labels) {
        reinterpret_cast<int32_t*>(in.back().data())[i] = static_cast<int32_t>(values[i]);
      } else {
        reinterpret_cast<Scalar*>(in.back().data())[i] = static_cast<Scalar>(values[i]);
      }
    }
  }
  for (const KernelCase::Output& output : outputs) {
    if (output.input < 0) buffers.emplace_back(output.elements * sizeof(Scalar), skip);
    out.push_back(output.input < 0 ? buffers.back().span : in.at(output.input));
  }
  RunOp<Scalar>(op, {}, in, out, kSeed);
  std::vector<Array> results;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto* values = reinterpret_cast<const Scalar*>(out[i].data());
    results.emplace_back(values, values + outputs[i].elements);
  }
  return results;
}

// Fails unless each element differs from `want` by at most `tolerance` times the largest magnitude
// in `want`.
inline void ExpectClose(const Array& got, const Array& want, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::abs(got[i] - want[i]) <= tolerance * largest)
        << what << ", element " << i << ": got " << got[i] << ", want " << want[i];
  }
}

inline std::vector<Array> AllToDouble(const std::vector<Values>& inputs) {
  std::vector<Array> result;
  for (const Values& values : inputs) result.emplace_back(values.begin(), values.end());
  return result;
}

// Runs the case in double and in float and compares the outputs with `want`.
inline void Check(const KernelCase& test, const std::vector<Array>& want) {
  const std::vector<Array> inputs = AllToDouble(test.inputs);
  const std::vector<Array> exact = Execute<double>(test.op, inputs, test.outputs);
  const std::vector<Array> rounded = Execute<float>(test.op, inputs, test.outputs);
  ASSERT_EQ(exact.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string what = test.op.name + " output " + std::to_string(i);
    // The tolerance is not below 1e-6 because some operands are outputs that were rounded to float.
    ExpectClose(exact[i], want[i], 1e-6, what);
    ExpectClose(rounded[i], exact[i], 1e-4, what + " in float");
  }
}

// Compares `gradient` with central differences of `loss` in each element of `at`.
inline void CheckGradient(const std::function<double(const Array&)>& loss, const Array& at,
                          const Array& gradient, const std::string& what) {
  constexpr double kStep = 1e-5;
  Array differences(at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    Array moved = at;
    moved[i] = at[i] + kStep;
    const double up = loss(moved);
    moved[i] = at[i] - kStep;
    differences[i] = (up - loss(moved)) / (2 * kStep);
  }
  ExpectClose(gradient, differences, 1e-6, what);
}

// Compares `gradient` with the derivative, by inputs[i], of the sum of weights * (the first output
// of the op). `others` describes the outputs after the first.
inline void CheckInputGradient(const Op& forward, const std::vector<Array>& inputs, size_t i,
                               const Array& weights, const Array& gradient,
                               const std::vector<KernelCase::Output>& others = {}) {
  std::vector<KernelCase::Output> outputs{{weights.size(), -1}};
  outputs.insert(outputs.end(), others.begin(), others.end());
  const auto loss = [&](const Array& value) {
    std::vector<Array> moved = inputs;
    moved[i] = value;
    const Array y = Execute<double>(forward, moved, outputs)[0];
    double sum = 0;
    for (size_t j = 0; j < y.size(); ++j) sum += weights[j] * y[j];
    return sum;
  };
  CheckGradient(loss, inputs[i], gradient, forward.name + " by input " + std::to_string(i));
}

class CpuKernelsTest : public ::testing::Test {
 protected:
  // Returns `count` uniform values in [-1, 1) that are at least 0.01 away from 0, where relu has a
  // kink.
  Values Random(size_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(count);
    for (float& value : values) {
      do value = uniform(random_);
      while (std::abs(value) < 0.01f);
    }
    return values;
  }

  // Returns distinct numbers in random order, at least 1e-3 apart, so that a small step changes no
  // maximum.
  Values Distinct(size_t count) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = 1e-3f * (static_cast<float>(i) - static_cast<float>(count) / 2);
    }
    std::shuffle(values.begin(), values.end(), random_);
    return values;
  }

  std::mt19937_64 random_{1};
};

inline Array RandomLike(const Array& y, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Array values(y.size());
  for (double& value : values) value = uniform(random);
  return values;
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_UNIT_BACKEND_CPU_CPU_KERNELS_FIXTURE_H_
