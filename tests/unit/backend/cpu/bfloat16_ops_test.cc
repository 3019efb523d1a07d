// Every op that bfloat16 networks have, in bfloat16 against float32 on the CPU: from equal inputs,
// and from inputs that bfloat16 has to round.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/common/bfloat16.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/widened_operands.h"
#include "tests/testing/networks.h"
#include "traces/lowering/lowering.h"
#include "traces/ops/op_table.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using Elements = std::map<TensorId, std::vector<float>>;  // by storage

float Rounded(float value) { return std::bit_cast<float>(uint32_t{RoundToBfloat16(value)} << 16); }
// Returns the distance of the numbers of bfloat16, which have 8 significant bits, at `value`.
double UlpAt(double value) {
  return value == 0 ? std::ldexp(1.0, -133) : std::ldexp(1.0, std::ilogb(value) - 7);
}

// One op of a trace with operands of its own.
class SingleOp {
 public:
  SingleOp(const Trace& trace, const Op& op) : trace_(trace), op_(op) {}

  // Returns uniform values in [-1, 1), and numbers from 0.5 on where they cannot be negative.
  Elements Draw(uint32_t seed) const {
    std::mt19937 random(seed);
    Elements drawn;
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      const TensorId id = op_.inputs[i];
      const auto is = [&](Role role, size_t part = 0) { return InputIndex(op_, role, part) == i; };
      const bool positive = is(Role::kInvStd) || is(Role::kSecondMoment) ||
                            is(Role::kSecondMoment, 1) || is(Role::kSquareSum);
      const bool probability = is(Role::kY) && op_.type == OpType::kSoftmaxLoss;
      std::uniform_real_distribution<float> uniform(positive      ? 0.5f
                                                    : probability ? 0.0f
                                                                  : -1.0f,
                                                    1);
      std::vector<float> values(static_cast<size_t>(trace_.tensor(id).size.count() /
                                                    ElementSize(trace_.tensor(id).dtype)));
      for (float& value : values) {
        value = is(Role::kStep) || is(Role::kStep, 1) ? 3 : uniform(random);
        if (is(Role::kIndices) || is(Role::kLabels))
          value = std::bit_cast<float>(static_cast<uint32_t>(random() % 3));
      }
      drawn.try_emplace(trace_.Root(id), std::move(values));
    }
    return drawn;
  }

  bool IsShort(TensorId id) const { return trace_.tensor(id).dtype == DataType::kBfloat16; }

  // Returns the outputs, in float32 or as the trace stores them.
  std::vector<std::vector<float>> Run(const Elements& inputs, bool in_float) const {
    std::map<TensorId, std::vector<std::byte>> memory;
    const auto stores_short = [&](TensorId id) { return !in_float && IsShort(id); };
    for (const auto* list : {&op_.outputs, &op_.inputs}) {
      for (const TensorId id : *list) {
        const auto elements = static_cast<size_t>(trace_.tensor(id).size.count() /
                                                  ElementSize(trace_.tensor(id).dtype));
        std::vector<std::byte>& bytes = memory[trace_.Root(id)];
        bytes.resize(elements * (stores_short(id) ? 2 : 4));
        const auto values = inputs.find(trace_.Root(id));
        if (values == inputs.end()) continue;
        for (size_t i = 0; i < elements; ++i) {
          const float value = values->second[i];
          const uint16_t bits = RoundToBfloat16(value);
          std::memcpy(bytes.data() + i * (stores_short(id) ? 2 : 4),
                      stores_short(id) ? static_cast<const void*>(&bits) : &value,
                      stores_short(id) ? 2 : 4);
        }
      }
    }
    WidenedOperands widened;
    const auto spans = [&](const std::vector<TensorId>& ids) {
      std::vector<std::span<std::byte>> taken;
      for (const TensorId id : ids) {
        const std::span<std::byte> stored = memory.at(trace_.Root(id));
        taken.push_back(stores_short(id) ? widened.Of(stored) : stored);
      }
      return taken;
    };
    const std::vector<std::span<std::byte>> outputs = spans(op_.outputs);
    RunOp<float>(op_, {}, spans(op_.inputs), outputs, /*seed=*/5);
    std::vector<std::vector<float>> results;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto* values = reinterpret_cast<const float*>(outputs[i].data());
      std::vector<float>& result =
          results.emplace_back(values, values + outputs[i].size() / sizeof(float));
      if (!stores_short(op_.outputs[i])) continue;
      std::ranges::transform(result, result.begin(), Rounded);
    }
    return results;
  }

 private:
  const Trace& trace_;
  const Op& op_;
};

// The largest errors from rounded inputs, in ulps of bfloat16 at the largest value of the output.
// An op that only moves values has the half ulp of its inputs; the others round their outputs, too,
// or join inputs whose errors add up. Ops whose type has no step have no bound.
constexpr struct {
  OpType type;
  double forward, backward, update;
} kBounds[] = {
    {OpType::kConv2d, 1, 1, 0},
    {OpType::kLinear, 1, 1.25, 0},
    {OpType::kGelu, 1, 1, 0},
    {OpType::kSilu, 1, 1, 0},
    {OpType::kLayerNorm, 0.75, 0.75, 0},
    {OpType::kRmsNorm, 0.75, 0.75, 0},
    {OpType::kSoftmax, 0.5, 0.75, 0},
    {OpType::kDropout, 1, 1, 0},
    {OpType::kEmbedding, 0.5, 0.75, 0},
    {OpType::kPositionEmbedding, 1, 1, 0},
    {OpType::kRotary, 1, 1, 0},
    {OpType::kAttentionScores, 1, 1, 0},
    {OpType::kAttentionValues, 0.75, 1, 0},
    {OpType::kAttention, 1.25, 1.75, 0},
    {OpType::kSelect, 0.5, 0.5, 0},
    {OpType::kAdd, 1, 0.5, 0},
    {OpType::kMul, 1.5, 1.5, 0},
    {OpType::kSoftmaxLoss, 0.5, 0.5, 0},
    {OpType::kSquareSum, 0, 0, 0.5},
    {OpType::kClip, 0, 0, 0.75},
    {OpType::kSgd, 0, 0, 1},
    {OpType::kAdam, 0, 0, 0.75},
    {OpType::kAdamW, 0, 0, 0.75},
};

TEST(Bfloat16OpsTest, ErrorsAreWithinTheBounds) {
  std::map<std::pair<OpType, Phase>, double> worst;
  const Network bert = BuildBert(
      "bert", 5,
      {.width = 6, .layers = 1, .heads = 2, .vocabulary = 7, .positions = 5, .dropout = 0.3},
      AttentionKind::kFused);
  for (const Network& network : {testing::Gpt(), testing::Llama(), testing::Vit(), bert}) {
    for (const OpType optimizer : {OpType::kSgd, OpType::kAdam, OpType::kAdamW}) {
      LoweringOptions options{3, "torch", true, optimizer, Precision::kBf16};
      options.clip_norm = 1;
      const Trace trace = LowerNetwork(network, options);
      for (const Op& op : trace.ops) {
        SCOPED_TRACE(network.name() + " " + op.name);
        const SingleOp single(trace, op);
        for (uint32_t seed = 0; seed < 3; ++seed) {
          Elements inputs = single.Draw(seed);
          const auto got = single.Run(inputs, /*in_float=*/false);
          const auto exact = single.Run(inputs, /*in_float=*/true);
          for (const TensorId id : op.inputs) {
            if (!single.IsShort(id)) continue;
            std::vector<float>& values = inputs.at(trace.Root(id));
            std::ranges::transform(values, values.begin(), Rounded);
          }
          const auto from_rounded = single.Run(inputs, /*in_float=*/true);
          for (size_t i = 0; i < got.size(); ++i) {
            double largest = 0, error = 0;
            for (size_t j = 0; j < got[i].size(); ++j) {
              // From equal inputs, an op computes in float32 and rounds once.
              const float once =
                  single.IsShort(op.outputs[i]) ? Rounded(from_rounded[i][j]) : from_rounded[i][j];
              ASSERT_EQ(got[i][j], once) << "output " << i << ", element " << j;
              largest = std::max(largest, std::abs(double{exact[i][j]}));
              error = std::max(error, std::abs(double{got[i][j]} - double{exact[i][j]}));
            }
            double& of_op = worst[{op.type, op.phase}];
            of_op = std::max(of_op, error / UlpAt(largest));
          }
        }
      }
    }
  }
  for (const auto& [op, error] : worst) {
    const auto* const bound =
        std::ranges::find(kBounds, op.first, [](const auto& b) { return b.type; });
    ASSERT_NE(bound, std::end(kBounds)) << Name(op.first);
    EXPECT_LE(error, op.second == Phase::kForward    ? bound->forward
                     : op.second == Phase::kBackward ? bound->backward
                                                     : bound->update)
        << Name(op.first) << " " << Name(op.second);
  }
}

}  // namespace
}  // namespace spillway::testing
