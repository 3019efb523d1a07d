// Tests that synthetic contents are a function of seed, tensor, iteration and element.

#include "backend/common/synthetic_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "tests/testing/networks.h"
#include "traces/lowering/lowering.h"
#include "traces/ops/op_table.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

std::vector<float> Floats(const SyntheticData& data, size_t count) {
  std::vector<float> values(count);
  Fill(data, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(SyntheticDataTest, EachKindOfTensorGetsItsOwn) {
  const Trace trace = LowerNetwork(testing::Residual(), {2, "torch", true});
  const SyntheticSource source(trace, 7);
  std::set<uint64_t> seeds;
  int scales = 0, labels = 0;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    const auto id = static_cast<TensorId>(i);
    const SyntheticData data = source.Of(id, 0);
    const bool again = source.Of(id, 1).seed == data.seed;
    if (tensor.kind == TensorKind::kParameter) {
      EXPECT_TRUE(again) << tensor.name;  // parameters arrive once
      EXPECT_TRUE(seeds.insert(data.seed).second) << tensor.name;
      scales += data.centre == 1 ? 1 : 0;
    } else if (tensor.kind == TensorKind::kInput) {
      EXPECT_FALSE(again) << tensor.name;
      labels += data.kind == DataKind::kLabels ? 1 : 0;
    } else if (tensor.kind == TensorKind::kOptimizerState && data.kind == DataKind::kUniform) {
      // A variance starts at 1.
      EXPECT_EQ(Floats(data, 3), std::vector<float>(3, 1.0f)) << tensor.name;
    }
  }
  EXPECT_GT(scales, 0);
  EXPECT_EQ(labels, 1);
}

TEST(SyntheticDataTest, APartHoldsWhatTheWholeWould) {
  Trace trace = LowerNetwork(testing::Normalized(), {2, "torch", false});
  const auto weight = std::ranges::find_if(trace.tensors, [](const Tensor& tensor) {
    return tensor.kind == TensorKind::kParameter && tensor.shape.size() == 4;
  });
  ASSERT_NE(weight, trace.tensors.end());
  const auto whole = static_cast<TensorId>(weight - trace.tensors.begin());
  trace.tensors.push_back({"part", TensorKind::kParameter, {5}, Bytes(20), {}, whole, Bytes(12)});
  const auto part = static_cast<TensorId>(trace.tensors.size() - 1);
  const SyntheticSource source(trace, 7);
  const std::vector<float> all = Floats(source.Of(whole, 0), 8);
  std::vector<float> five(5);
  Fill(source.Of(part, 0), std::as_writable_bytes(std::span(five)),
       FirstElement(trace.tensor(part)));
  EXPECT_EQ(five, std::vector<float>(all.begin() + 3, all.end()));
}

TEST(SyntheticDataTest, ElementsAreUniformAroundTheirCentre) {
  const std::vector<float> values = Floats({DataKind::kUniform, 3, 0.5f, 1, 0}, 10'000);
  double sum = 0, squares = 0;
  for (const float value : values) {
    ASSERT_GE(value, 0.5f);
    ASSERT_LT(value, 1.5f);
    sum += value;
    squares += (value - 1.0) * (value - 1.0);
  }
  EXPECT_NEAR(sum / 10'000, 1.0, 0.02);
  EXPECT_NEAR(squares / 10'000, 1.0 / 12, 0.005);
}

// A parameter in bfloat16 holds the rounded values of its master copy.
TEST(SyntheticDataTest, MasterCopiesHoldTheParameters) {
  const Network network = BuildNetwork("gpt(8,1,2,5)@3");
  const Trace trace = LowerNetwork(
      network, {.batch = 1, .optimizer = OpType::kAdamW, .precision = Precision::kBf16});
  const SyntheticSource source(trace, 7);
  int masters = 0;
  for (const Op& op : trace.ops) {
    if (!op.Flag("master")) continue;
    ++masters;
    const SyntheticData master = source.Of(FindInput(op, Role::kMaster).value(), 0);
    const SyntheticData rounded = source.Of(FindInput(op, Role::kParameter).value(), 0);
    EXPECT_FALSE(master.bf16);
    ASSERT_TRUE(rounded.bf16);
    const std::vector<float> values = Floats(master, 4);
    std::vector<uint16_t> bits(4);
    Fill(rounded, std::as_writable_bytes(std::span(bits)));
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = std::bit_cast<float>(uint32_t{bits[i]} << 16);
      EXPECT_NEAR(value, values[i], std::abs(values[i]) / 256) << op.name;
    }
  }
  EXPECT_GT(masters, 5);
}

TEST(SyntheticDataTest, LabelsAreClasses) {
  std::vector<int32_t> labels(1000);
  Fill({DataKind::kLabels, 3, 0, 0, 10}, std::as_writable_bytes(std::span(labels)));
  const std::set<int32_t> seen(labels.begin(), labels.end());
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 9);
}

}  // namespace
}  // namespace spillway::testing
