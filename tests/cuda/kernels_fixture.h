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
#include "tests/testing/kernel_cases.h"
#include "traces/base/error.h"

namespace spillway {

inline constexpr double kTolerance = 1e-4;

class KernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      kernels_ = std::make_unique<CudaKernels>(KernelOptions{.math = "fp32", .seed = kSeed});
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << "NOT TESTED: " << error.what();
    }
  }

  // Returns `count` uniform values in [-1, 1).
  Values Random(size_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(count);
    for (float& value : values) value = uniform(random_);
    return values;
  }

  // Executes the op and returns its outputs, which start as NaN. `parts` are the batches into which
  // each slot is split. `algorithms` maps slot names to algorithms other than "default".
  std::vector<Values> Run(const KernelCase& test, const std::vector<int64_t>& parts,
                          const std::map<std::string, std::string>& algorithms = {}) {
    std::vector<DeviceBuffer> buffers;
    std::vector<DeviceRange> inputs, outputs;
    for (const Values& values : test.inputs) {
      const Bytes size(static_cast<int64_t>(values.size() * sizeof(float)));
      buffers.emplace_back(size);
      SPILLWAY_CUDA_CALL(cudaMemcpy(buffers.back().data(), values.data(),
                                    values.size() * sizeof(float), cudaMemcpyHostToDevice));
      inputs.push_back(buffers.back().range());
    }
    for (const KernelCase::Output& output : test.outputs) {
      if (output.input >= 0) {
        outputs.push_back(inputs.at(output.input));
        continue;
      }
      const Bytes size(static_cast<int64_t>(output.elements * sizeof(float)));
      buffers.emplace_back(size);
      SPILLWAY_CUDA_CALL(cudaMemset(buffers.back().data(), 0xff, size.count()));
      outputs.push_back(buffers.back().range());
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
    for (size_t i = 0; i < outputs.size(); ++i) {
      results.emplace_back(test.outputs[i].elements);
      SPILLWAY_CUDA_CALL(cudaMemcpy(results.back().data(), outputs[i].data,
                                    results.back().size() * sizeof(float), cudaMemcpyDeviceToHost));
    }
    return results;
  }

  Bytes Workspace(const Op& op, size_t slot, int64_t batch, const std::string& algorithm) {
    for (const Candidate& candidate : kernels_->Candidates(op, slot, batch)) {
      if (candidate.algorithm == algorithm) return candidate.workspace;
    }
    throw Error("no candidate " + algorithm);
  }

  static void ExpectClose(const Values& got, const Array& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      ASSERT_FALSE(std::isnan(error)) << what << ": NaN at " << i;
      worst = std::max(worst, error);
    }
    EXPECT_LE(worst, kTolerance * largest) << what << ", largest element " << largest;
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

  std::unique_ptr<CudaKernels> kernels_;
  std::mt19937_64 random_{1};
};

}  // namespace spillway

#endif  // SPILLWAY_TESTS_CUDA_KERNELS_FIXTURE_H_
