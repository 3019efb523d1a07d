// The fixture of the CUDA kernel tests. It executes ops and compares the results with references.
// Without a GPU every test is skipped.

#ifndef SPILLWAY_TESTS_CUDA_KERNELS_FIXTURE_H_
#define SPILLWAY_TESTS_CUDA_KERNELS_FIXTURE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels.h"
#include "tests/cuda/half_types.h"
#include "tests/testing/kernel_cases.h"
#include "traces/base/error.h"

namespace spillway::testing {

// The largest errors of results in float32 and in bfloat16, relative to the largest element. The
// latter is three units in the last place.
inline constexpr double kTolerance = 1e-4;
inline constexpr double kBfloat16Tolerance = 3.0 / 256;

class KernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      kernels_ = std::make_unique<CudaKernels>(KernelOptions{.math = "fp32", .seed = kSeed});
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << "NOT TESTED: " << error.what();
    }
  }

  // Returns `count` uniform values in [-1, 1), which bfloat16 has if it is in use.
  Values Random(size_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(count);
    for (float& value : values) value = uniform(random_);
    Round(values, bfloat16_ ? DataType::kBfloat16 : DataType::kFloat32);
    return values;
  }

  // Makes all operands of the cases that follow bfloat16, until `types_` is set.
  void UseBfloat16() {
    bfloat16_ = true;
    types_.inputs.assign(8, DataType::kBfloat16);
    types_.outputs = types_.inputs;
  }

  // Executes the op and returns its outputs, which start as NaN. `parts` are the batches into which
  // each slot is split. `algorithms` maps slot names to algorithms other than "default".
  std::vector<Values> Run(const KernelCase& test, const std::vector<int64_t>& parts,
                          const std::map<std::string, std::string>& algorithms = {}) {
    std::vector<DeviceBuffer> buffers;
    std::vector<DeviceRange> inputs, outputs;
    const auto add = [&](std::vector<DeviceRange>& ranges, DeviceBuffer buffer, DataType type) {
      buffers.push_back(std::move(buffer));
      ranges.push_back({buffers.back().data(), buffers.back().size(), type});
    };
    for (size_t i = 0; i < test.inputs.size(); ++i) {
      const DataType type = TypeOf(types_.inputs, i);
      add(inputs, Upload(test.inputs[i], type), type);
    }
    for (size_t i = 0; i < test.outputs.size(); ++i) {
      const KernelCase::Output& output = test.outputs[i];
      if (output.input >= 0) {
        outputs.push_back(inputs.at(output.input));
        continue;
      }
      const DataType type = TypeOf(types_.outputs, i);
      add(outputs, Upload(Values(output.elements, std::nanf("")), type), type);
    }
    for (size_t slot = 0; slot < test.op.slots.size(); ++slot) {
      const auto found = algorithms.find(test.op.slots[slot].name);
      const std::string algorithm = found == algorithms.end() ? "default" : found->second;
      int64_t first = 0;
      for (const int64_t batch : parts) {
        const DeviceBuffer workspace(Workspace(test.op, slot, batch, algorithm));
        kernels_->Launch(test.op,
                         {.slot = slot,
                          .algorithm = algorithm,
                          .first = first,
                          .batch = batch,
                          .inputs = inputs,
                          .outputs = outputs,
                          .workspace = workspace.range()},
                         nullptr);
        SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
        first += batch;
      }
    }
    std::vector<Values> results;
    for (const DeviceRange& output : outputs) results.push_back(Download(output, output.type));
    return results;
  }

  Bytes Workspace(const Op& op, size_t slot, int64_t batch, const std::string& algorithm) {
    for (const Candidate& candidate : kernels_->Candidates(op, slot, batch, types_)) {
      if (candidate.algorithm == algorithm) return candidate.workspace;
    }
    throw Error("no candidate " + algorithm);
  }

  void ExpectClose(const Values& got, const Array& want, const std::string& what) const {
    ASSERT_EQ(got.size(), want.size()) << what;
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      ASSERT_FALSE(std::isnan(error)) << what << ": NaN at " << i;
      worst = std::max(worst, error);
    }
    const double tolerance = bfloat16_ ? kBfloat16Tolerance : kTolerance;
    EXPECT_LE(worst, tolerance * largest) << what << ", largest element " << largest;
  }

  // Runs the case whole and, if it has more than one sample, in two parts.
  void Check(const KernelCase& test, const std::vector<Array>& want, bool divisible = true) {
    std::vector<std::vector<int64_t>> splits{{test.op.batch}};
    if (divisible && test.op.batch > 1) splits.push_back({1, test.op.batch - 1});
    for (const std::vector<int64_t>& parts : splits) {
      const std::vector<Values> got = Run(test, parts);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ExpectClose(got[i], want[i],
                    test.op.name + " output " + std::to_string(i) + ", " +
                        std::to_string(parts.size()) + " parts");
      }
    }
  }

  static DataType TypeOf(const std::vector<DataType>& types, size_t i) {
    return i < types.size() ? types[i] : DataType::kFloat32;
  }

  std::unique_ptr<CudaKernels> kernels_;
  OperandTypes types_;  // the types of the cases that run
  bool bfloat16_ = false;
  std::mt19937_64 random_{1};
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_CUDA_KERNELS_FIXTURE_H_
