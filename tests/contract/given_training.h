// Trains networks on the CPU from weights that depend on their names alone, on the same data, so
// that networks and options can be compared that should compute the same.

#ifndef SPILLWAY_TESTS_CONTRACT_GIVEN_TRAINING_H_
#define SPILLWAY_TESTS_CONTRACT_GIVEN_TRAINING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/common/synthetic_data.h"
#include "experiments/run/given_contents.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/execute.h"
#include "tests/testing/files.h"
#include "tests/testing/networks.h"
#include "traces/base/counter_random.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {

inline bool IsWeight(const Tensor& tensor) {
  return (tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState) &&
         !tensor.alias_of && !tensor.part_of;
}

struct Trained {
  float loss = 0;                                    // the last iteration's loss
  std::map<std::string, std::vector<float>> values;  // float32 parameters and state, by name
};

// Trains networks from the same weights on the same data, whatever the options.
class GivenTraining : public ::testing::Test {
 protected:
  static std::string ContentsOf(const Trace& trace) {
    std::map<std::string, std::vector<std::byte>> bytes;
    StoredTensors stored;
    for (const Tensor& tensor : trace.tensors) {
      if (tensor.kind != TensorKind::kParameter) continue;
      const bool is_short = tensor.dtype == DataType::kBfloat16;
      const bool is_scale = tensor.shape.size() == 1 && tensor.name.ends_with(".weight");
      std::vector<std::byte>& contents = bytes[tensor.name];
      contents.resize(static_cast<size_t>(tensor.size.count()));
      Fill({DataKind::kUniform, std::hash<std::string>()(tensor.name), 0.4f, is_scale ? 1.0f : 0.0f,
            0, is_short},
           contents, 0);
      stored[tensor.name] = {is_short ? "BF16" : "F32", tensor.shape, contents};
    }
    return FormatSafetensors(stored);
  }

  // Writes images and labels of `samples` samples.
  static std::string ImagesOf(const Trace& trace, int64_t samples) {
    std::vector<int64_t> shape = trace.tensors.front().shape;
    shape.front() = samples;
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    std::vector<float> images(count);
    for (size_t i = 0; i < count; ++i) images[i] = RandomFloat(3, static_cast<int64_t>(i), 1);
    std::vector<int32_t> labels(static_cast<size_t>(samples));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i * 7 % 5);
    return FormatSafetensors({{"images", {"F32", shape, std::as_bytes(std::span(images))}},
                              {"labels", {"I32", {samples}, std::as_bytes(std::span(labels))}}});
  }

  static int64_t VocabularyOf(const Network& network) {
    return network.layer(network.size() - 1).output.channels;
  }

  Trained Train(const Network& network, const LoweringOptions& options, int iterations = 2) {
    const Trace trace = LowerNetwork(network, options);
    const bool tokens = trace.tensors.front().dtype == DataType::kInt32;
    GivenFiles files;
    files.weights = directory_ / "weights.safetensors";
    testing::WriteRaw(files.weights, ContentsOf(trace));
    if (tokens) {
      files.text = directory_ / "text";
      std::string text;
      const auto words = std::min<int64_t>(5, VocabularyOf(network));
      for (int i = 0; i < 500; ++i) text += static_cast<char>(i * i % 7 % words);
      testing::WriteRaw(files.text, text);
    } else {
      files.images = directory_ / "images.safetensors";
      testing::WriteRaw(files.images, ImagesOf(trace, trace.batch * iterations));
    }
    CpuRun on_cpu;
    on_cpu.seed = 7;
    on_cpu.given = std::make_shared<GivenContents>(files, trace);
    on_cpu.keep_weights = true;
    BackendFactories backends;
    backends.Add("cpu", CpuFactory(on_cpu));
    Draft run{Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)};
    run.backend = "cpu";
    run.options.iterations = iterations;
    const Execution done =
        *testing::RunPolicy(run, *registry_.Make("liveness"), backends).execution;
    Trained trained;
    trained.loss = done.loss.value();
    size_t at = 0;
    for (const Tensor& tensor : trace.tensors) {
      if (!IsWeight(tensor)) continue;
      const auto size = static_cast<size_t>(tensor.size.count());
      if (tensor.dtype == DataType::kFloat32) {
        std::vector<float>& elements = trained.values[tensor.name];
        elements.resize(size / sizeof(float));
        std::memcpy(elements.data(), done.weights.data() + at, size);
      }
      at += size;
    }
    return trained;
  }

  // Fails unless the losses and all values agree, up to a part of the largest value of a tensor.
  static void ExpectNear(const Trained& got, const Trained& want, double tolerance) {
    EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
    ASSERT_EQ(got.values.size(), want.values.size());
    for (const auto& [name, values] : want.values) {
      float largest = 0.01f;  // gradients that should be 0 are rounding errors
      for (const float value : values) largest = std::max(largest, std::abs(value));
      const std::vector<float>& others = got.values.at(name);
      ASSERT_EQ(others.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(others[i], values[i], tolerance * largest) << name << "[" << i << "]";
      }
    }
  }

  GivenTraining() { RegisterBuiltinPolicies(registry_); }

  const testing::TemporaryDirectory directory_;
  const Device device_ = testing::NarrowDevice();
  const RooflineCostModel cost_{device_};
  PolicyRegistry registry_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_CONTRACT_GIVEN_TRAINING_H_
