// Tests of the CPU kernels for sequences. Forward steps are compared with naive formulas. Backward
// steps, in every mode, are compared with central differences of the forward step.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/backend/cpu/cpu_kernels_fixture.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

// A layer with the values of its forward operands.
struct SequenceLayer {
  OpType type = OpType::kOther;
  int64_t batch = 1;
  std::vector<Attribute> attributes{};
  std::map<Role, Array> inputs{};
  size_t y = 0;           // elements of the output
  size_t statistics = 0;  // elements of each further output
};

std::vector<Role> RolesIn(const Op& op, const OperandList& list) {
  std::vector<Role> roles;
  for (const Operand& operand : list.span()) {
    if (Holds(op, operand.when)) roles.push_back(operand.role);
  }
  return roles;
}

Role OperandOf(Role gradient) { return static_cast<Role>(Index(gradient) - 1); }

class SequenceTest : public CpuKernelsTest {
 protected:
  Array Draw(size_t count) { return ToDouble(Random(count)); }

  static Op Forward(const SequenceLayer& layer, bool training = true) {
    std::vector<Attribute> attributes = layer.attributes;
    if (!RowOf(layer.type).forward.mode.empty()) {
      attributes.push_back({"training", training ? 1.0 : 0.0});
    }
    return MakeOp(layer.type, Phase::kForward, layer.batch, std::move(attributes));
  }

  // Returns the outputs of forward in the op's order.
  static std::vector<KernelCase::Output> OutputsOf(const SequenceLayer& layer, const Op& op) {
    std::vector<KernelCase::Output> outputs;
    for (const Role role : RolesIn(op, StepOf(op).outputs)) {
      outputs.push_back({role == Role::kY ? layer.y : layer.statistics, -1});
    }
    return outputs;
  }

  static std::vector<Array> InputsOf(const SequenceLayer& layer, const Op& op) {
    std::vector<Array> inputs;
    for (const Role role : RolesIn(op, StepOf(op).inputs)) inputs.push_back(layer.inputs.at(role));
    return inputs;
  }

  static Array Run(const SequenceLayer& layer) {
    const Op op = Forward(layer);
    return Execute<double>(op, InputsOf(layer, op), OutputsOf(layer, op))[0];
  }

  // Runs backward once. `old` holds what stands in the gradients before: the op adds to the first
  // of them if it is not empty. `mode` has the attributes of backward.
  template <typename Scalar>
  static std::map<Role, Array> Backward(const SequenceLayer& layer, std::map<Role, Array> values,
                                        std::vector<Attribute> mode, Role adds_to = Role::kNone,
                                        const Array& old = {}) {
    std::vector<Attribute> attributes = layer.attributes;
    attributes.insert(attributes.end(), mode.begin(), mode.end());
    Op op = MakeOp(layer.type, Phase::kBackward, layer.batch, std::move(attributes));
    std::vector<Array> inputs;
    for (const Role role : RolesIn(op, StepOf(op).inputs)) inputs.push_back(values.at(role));
    std::vector<KernelCase::Output> outputs;
    const std::vector<Role> roles = RolesIn(op, StepOf(op).outputs);
    for (size_t i = 0; i < roles.size(); ++i) {
      int shared = -1;
      const bool parameter = roles[i] == Role::kDweight || roles[i] == Role::kDbias;
      if (op.Flag("fused_update") && parameter) {
        shared = static_cast<int>(InputIndex(op, OperandOf(roles[i])).value());
      }
      if (roles[i] == adds_to) {
        op.attributes.push_back({"accumulate", static_cast<double>(1 << i)});
        inputs.push_back(old);
        shared = static_cast<int>(inputs.size()) - 1;
      }
      outputs.push_back({values.at(OperandOf(roles[i])).size(), shared});
    }
    std::map<Role, Array> gradients;
    const std::vector<Array> results = Execute<Scalar>(op, inputs, outputs);
    for (size_t i = 0; i < roles.size(); ++i) gradients[roles[i]] = results[i];
    return gradients;
  }

  // Checks backward of the layer in every mode.
  void CheckGradients(const SequenceLayer& layer) {
    const Op forward = Forward(layer);
    SCOPED_TRACE(forward.name);
    const std::vector<Array> inputs = InputsOf(layer, forward);
    const auto outputs = OutputsOf(layer, forward);
    const std::vector<Array> results = Execute<double>(forward, inputs, outputs);
    std::map<Role, Array> values = layer.inputs;
    const std::vector<Role> written = RolesIn(forward, StepOf(forward).outputs);
    for (size_t i = 0; i < written.size(); ++i) values[written[i]] = results[i];
    const Array dy = Draw(layer.y);
    values[Role::kDy] = dy;
    for (const Array& output : Execute<float>(forward, inputs, outputs)) {
      for (const double value : output) ASSERT_TRUE(std::isfinite(value));
    }

    const std::vector<Attribute> plain{{"needs_dx", 1}, {"fused_update", 0}};
    const auto gradients = Backward<double>(layer, values, plain);
    const auto rounded = Backward<float>(layer, values, plain);
    for (const auto& [role, gradient] : gradients) {
      const size_t input = InputIndex(forward, OperandOf(role)).value();
      CheckInputGradient(forward, inputs, input, dy, gradient,
                         {outputs.begin() + 1, outputs.end()});
      ExpectClose(rounded.at(role), gradient, 1e-4, std::string(Name(role)) + " in float");
      const Array old = Draw(gradient.size());
      const auto added = Backward<double>(layer, values, plain, role, old);
      ExpectClose(added.at(role), gradient + old, 1e-9, std::string(Name(role)) + " added");
    }
    if (!layer.inputs.contains(Role::kWeight)) return;
    const auto no_dx = Backward<double>(layer, values, {{"needs_dx", 0}, {"fused_update", 0}});
    EXPECT_FALSE(no_dx.contains(Role::kDx));
    EXPECT_EQ(no_dx.at(Role::kDweight), gradients.at(Role::kDweight));
    const auto fused = Backward<double>(
        layer, values, {{"needs_dx", 1}, {"fused_update", 1}, {"learning_rate", kLearningRate}});
    for (const auto& [role, updated] : fused) {
      const Array& gradient = gradients.at(role);
      const bool is_dx = role == Role::kDx;
      ExpectClose(updated,
                  is_dx ? gradient : values.at(OperandOf(role)) + -kLearningRate * gradient, 1e-9,
                  std::string(Name(role)) + " fused");
    }
  }

  SequenceLayer Norm(OpType type, int batch, int rows, int features) {
    const auto count = static_cast<size_t>(batch * rows * features);
    SequenceLayer layer{type, batch};
    layer.attributes = {{"rows", static_cast<double>(rows)},
                        {"features", static_cast<double>(features)},
                        {"epsilon", 1e-3}};
    layer.inputs[Role::kX] = Draw(count);
    layer.inputs[Role::kWeight] = Draw(static_cast<size_t>(features));
    if (type == OpType::kLayerNorm) layer.inputs[Role::kBias] = Draw(static_cast<size_t>(features));
    layer.y = count;
    layer.statistics = static_cast<size_t>(batch * rows);
    return layer;
  }

  // Returns attention with its queries, keys and values.
  SequenceLayer Attend(int batch, int rows, int heads, int kv_heads, int head_dim, bool causal) {
    const auto queries = static_cast<size_t>(batch * rows * heads * head_dim);
    const auto keys = static_cast<size_t>(batch * rows * kv_heads * head_dim);
    SequenceLayer layer{OpType::kAttention, batch};
    layer.attributes = Heads(rows, heads, kv_heads, head_dim);
    layer.attributes.push_back({"causal", causal ? 1.0 : 0.0});
    layer.inputs = {{Role::kX, Draw(queries)}, {Role::kX2, Draw(keys)}, {Role::kX3, Draw(keys)}};
    layer.y = queries;
    layer.statistics = static_cast<size_t>(batch * heads * rows);
    return layer;
  }

  static std::vector<Attribute> Heads(int rows, int heads, int kv_heads, int head_dim) {
    return {{"rows", static_cast<double>(rows)},
            {"heads", static_cast<double>(heads)},
            {"kv_heads", static_cast<double>(kv_heads)},
            {"head_dim", static_cast<double>(head_dim)}};
  }
};

TEST_F(SequenceTest, LinearActsOnEachPosition) {
  SequenceLayer layer{OpType::kLinear, 2};
  layer.attributes = {{"in_features", 3}, {"out_features", 5}, {"bias", 1}, {"rows", 7}};
  layer.inputs = {{Role::kX, Draw(2 * 7 * 3)}, {Role::kWeight, Draw(15)}, {Role::kBias, Draw(5)}};
  layer.y = 2 * 7 * 5;
  CheckGradients(layer);
  const Array y = Run(layer);
  SequenceLayer flat = layer;
  flat.batch = 14;
  flat.attributes.pop_back();
  EXPECT_EQ(Run(flat), y);
}

TEST_F(SequenceTest, Norms) {
  for (const auto& [batch, rows, features] :
       {std::array{2, 3, 5}, std::array{1, 1, 1}, std::array{3, 1, 8}, std::array{1, 7, 2}}) {
    for (const OpType type : {OpType::kLayerNorm, OpType::kRmsNorm}) {
      const SequenceLayer layer = Norm(type, batch, rows, features);
      CheckGradients(layer);
      const Array& x = layer.inputs.at(Role::kX);
      Array want(x.size());
      for (size_t row = 0; row < layer.statistics; ++row) {
        const double* first = x.data() + row * static_cast<size_t>(features);
        double mean = 0, squares = 0;
        for (int i = 0; i < features; ++i) mean += first[i] / features;
        if (type == OpType::kRmsNorm) mean = 0;
        for (int i = 0; i < features; ++i) {
          squares += (first[i] - mean) * (first[i] - mean) / features;
        }
        for (int i = 0; i < features; ++i) {
          const auto at = static_cast<size_t>(i);
          const double bias = type == OpType::kLayerNorm ? layer.inputs.at(Role::kBias)[at] : 0;
          want[row * static_cast<size_t>(features) + at] =
              layer.inputs.at(Role::kWeight)[at] * (first[i] - mean) / std::sqrt(squares + 1e-3) +
              bias;
        }
      }
      ExpectClose(Run(layer), want, 1e-9, "norm");
      // Inference gives the same output without statistics.
      const Op inference = Forward(layer, false);
      EXPECT_EQ(Execute<double>(inference, InputsOf(layer, inference), {{layer.y, -1}})[0],
                Run(layer));
    }
  }
}

TEST_F(SequenceTest, EmbeddingChoosesRows) {
  SequenceLayer layer{OpType::kEmbedding, 2};
  layer.attributes = {{"rows", 3}, {"vocabulary", 4}, {"features", 2}};
  layer.inputs = {{Role::kIndices, {3, 0, 3, 1, 1, 3}}, {Role::kWeight, {1, 2, 3, 4, 5, 6, 7, 8}}};
  layer.y = 12;
  EXPECT_EQ(Run(layer), (Array{7, 8, 1, 2, 7, 8, 3, 4, 3, 4, 7, 8}));
  CheckGradients(layer);
  for (const double wrong : {-1.0, 4.0}) {
    layer.inputs[Role::kIndices][4] = wrong;
    EXPECT_THROW(Run(layer), InputError) << wrong;
  }
  layer = {OpType::kEmbedding, 1, {{"rows", 1}, {"vocabulary", 1}, {"features", 1}}};
  layer.inputs = {{Role::kIndices, {0}}, {Role::kWeight, {9}}};
  layer.y = 1;
  EXPECT_EQ(Run(layer), Array{9});
  CheckGradients(layer);
}

TEST_F(SequenceTest, PositionsHaveRows) {
  SequenceLayer layer{OpType::kPositionEmbedding, 2};
  layer.attributes = {
      {"rows", 3}, {"features", 2}, {"positions", 4}, {"span", 1}, {"class_token", 0}};
  layer.inputs = {{Role::kX, Draw(12)}, {Role::kWeight, {1, 2, 3, 4, 5, 6, 7, 8}}};
  layer.y = 12;
  CheckGradients(layer);
  EXPECT_EQ(Run(layer), (layer.inputs.at(Role::kX) + Array{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
  layer.attributes[2].value = 2;  // two segments, of two positions and of one
  layer.attributes[3].value = 2;
  layer.inputs[Role::kWeight] = {1, 2, 3, 4};
  CheckGradients(layer);
  EXPECT_EQ(Run(layer), (layer.inputs.at(Role::kX) + Array{1, 2, 1, 2, 3, 4, 1, 2, 1, 2, 3, 4}));
  layer.attributes[2].value = 1;
  EXPECT_THROW(Run(layer), InputError);
}

// The pixels 1 2 3 of the first channel and 4 5 6 of the second become the vectors (1, 4), (2, 5)
// and (3, 6) behind the class token.
TEST_F(SequenceTest, AClassTokenStandsBeforeThePixels) {
  SequenceLayer layer{OpType::kPositionEmbedding, 1};
  layer.attributes = {
      {"rows", 4}, {"features", 2}, {"positions", 4}, {"span", 1}, {"class_token", 1}};
  layer.inputs = {{Role::kX, {1, 2, 3, 4, 5, 6}},
                  {Role::kWeight, {10, 20, 30, 40, 50, 60, 70, 80}},
                  {Role::kBias, {0.5, 0.25}}};
  layer.y = 8;
  EXPECT_EQ(Run(layer), (Array{10.5, 20.25, 31, 44, 52, 65, 73, 86}));
  CheckGradients(layer);
}

// The rotation keeps the length of each pair, leaves the first position alone, and makes a product
// depend on the distance of the positions only.
TEST_F(SequenceTest, RotaryTurnsPairs) {
  SequenceLayer layer{OpType::kRotary, 2};
  layer.attributes = {{"rows", 5}, {"heads", 3}, {"head_dim", 4}, {"theta", 100}};
  layer.inputs = {{Role::kX, Draw(2 * 5 * 3 * 4)}};
  layer.y = 2 * 5 * 3 * 4;
  CheckGradients(layer);
  const Array& x = layer.inputs.at(Role::kX);
  const Array y = Run(layer);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(y[i], x[i]);
  for (size_t at = 0; at < y.size(); at += 4) {
    for (size_t i = at; i < at + 2; ++i) {
      EXPECT_NEAR(std::hypot(y[i], y[i + 2]), std::hypot(x[i], x[i + 2]), 1e-9);
    }
  }
  layer.attributes = {{"rows", 6}, {"heads", 1}, {"head_dim", 4}, {"theta", 100}};
  layer.batch = 1;
  Array same;
  for (int t = 0; t < 6; ++t) same.insert(same.end(), {0.3, -0.7, 0.2, 0.9});
  layer.inputs = {{Role::kX, same}};
  layer.y = same.size();
  const Array turned = Run(layer);
  const auto product = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < 4; ++i) sum += turned[a * 4 + i] * turned[b * 4 + i];
    return sum;
  };
  EXPECT_NEAR(product(0, 2), product(3, 5), 1e-9);
  EXPECT_GT(std::abs(product(0, 2) - product(0, 3)), 1e-3);
  layer.attributes[2].value = 3;
  EXPECT_THROW(Run(layer), InputError);
}

TEST_F(SequenceTest, SelectPicksOnePosition) {
  SequenceLayer layer{OpType::kSelect, 2};
  layer.attributes = {{"rows", 3}, {"features", 2}, {"index", 1}};
  layer.inputs = {{Role::kX, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}};
  layer.y = 4;
  EXPECT_EQ(Run(layer), (Array{3, 4, 9, 10}));
  CheckGradients(layer);
  layer.attributes[2].value = 3;
  EXPECT_THROW(Run(layer), InputError);
}

TEST_F(SequenceTest, SiluAndProducts) {
  SequenceLayer layer{OpType::kSilu, 2};
  layer.attributes = {{"elements", 3}};
  layer.inputs = {{Role::kX, {0, 1, -1, 2, -20, 20}}};
  layer.y = 6;
  const double e = std::exp(1.0);
  ExpectClose(Run(layer), {0, e / (1 + e), -1 / (1 + e), 2 * e * e / (1 + e * e), 0, 20}, 1e-8,
              "silu");
  CheckGradients(layer);
  layer.type = OpType::kMul;
  layer.inputs[Role::kX2] = {3, 4, 5, 6, 7, 8};
  EXPECT_EQ(Run(layer), (Array{0, 4, -5, 12, -140, 160}));
  CheckGradients(layer);
}

// Attention by its definition: y = softmax(q k^T / sqrt(d)) v for each head.
Array AttentionOf(const SequenceLayer& layer, int rows, int heads, int kv_heads, int dim,
                  bool causal) {
  const Array &q = layer.inputs.at(Role::kX), &k = layer.inputs.at(Role::kX2),
              &v = layer.inputs.at(Role::kX3);
  Array y(q.size());
  for (int n = 0; n < layer.batch; ++n)
    for (int h = 0; h < heads; ++h)
      for (int t = 0; t < rows; ++t) {
        const int group = h / (heads / kv_heads);
        const auto query = static_cast<size_t>(((n * rows + t) * heads + h) * dim);
        const auto key = [&](int j) {
          return static_cast<size_t>(((n * rows + j) * kv_heads + group) * dim);
        };
        double sum = 0;
        for (int j = 0; j < (causal ? t + 1 : rows); ++j) {
          double score = 0;
          for (int i = 0; i < dim; ++i) score += q[query + i] * k[key(j) + i];
          const double weight = std::exp(score / std::sqrt(dim));
          sum += weight;
          for (int i = 0; i < dim; ++i) y[query + i] += weight * v[key(j) + i];
        }
        for (int i = 0; i < dim; ++i) y[query + i] /= sum;
      }
  return y;
}

struct AttentionShape {
  int batch, rows, heads, kv_heads, head_dim;
};
constexpr AttentionShape kAttentionShapes[] = {
    {2, 5, 4, 2, 3}, {1, 1, 1, 1, 1}, {1, 7, 3, 1, 2}, {2, 2, 1, 1, 4}, {1, 3, 2, 2, 1}};

TEST_F(SequenceTest, FusedAttention) {
  for (const auto& [batch, rows, heads, kv_heads, head_dim] : kAttentionShapes) {
    for (const bool causal : {false, true}) {
      const SequenceLayer layer = Attend(batch, rows, heads, kv_heads, head_dim, causal);
      ExpectClose(Run(layer), AttentionOf(layer, rows, heads, kv_heads, head_dim, causal), 1e-9,
                  "attention");
      if (rows > 1) CheckGradients(layer);
      const Op inference = Forward(layer, false);
      EXPECT_EQ(Execute<double>(inference, InputsOf(layer, inference), {{layer.y, -1}})[0],
                Run(layer));
    }
  }
}

// The three ops of attention give the same result.
TEST_F(SequenceTest, AttentionInThreeOps) {
  for (const auto& [batch, rows, heads, kv_heads, head_dim] : kAttentionShapes) {
    for (const bool causal : {false, true}) {
      const SequenceLayer fused = Attend(batch, rows, heads, kv_heads, head_dim, causal);
      const auto square = static_cast<size_t>(batch * heads * rows * rows);
      SequenceLayer scores{OpType::kAttentionScores, batch, Heads(rows, heads, kv_heads, head_dim)};
      scores.inputs = {{Role::kX, fused.inputs.at(Role::kX)},
                       {Role::kX2, fused.inputs.at(Role::kX2)}};
      scores.y = square;
      CheckGradients(scores);
      SequenceLayer softmax{OpType::kSoftmax, batch};
      softmax.attributes = {{"rows", static_cast<double>(heads * rows)},
                            {"columns", static_cast<double>(rows)},
                            {"causal", causal ? 1.0 : 0.0}};
      softmax.inputs = {{Role::kX, Run(scores)}};
      softmax.y = square;
      if (rows > 1) CheckGradients(softmax);
      SequenceLayer values{OpType::kAttentionValues, batch, scores.attributes};
      values.inputs = {{Role::kX, Run(softmax)}, {Role::kX2, fused.inputs.at(Role::kX3)}};
      values.y = fused.y;
      CheckGradients(values);
      ExpectClose(Run(values), AttentionOf(fused, rows, heads, kv_heads, head_dim, causal), 1e-9,
                  "attention in three ops");
    }
  }
}

// The loss is the mean over samples and positions.
TEST_F(SequenceTest, LossOfEachPosition) {
  const std::vector<Attribute> attributes{{"elements", 4}, {"rows", 3}};
  const Op forward = MakeOp(OpType::kSoftmaxLoss, Phase::kForward, 2, attributes);
  Op flat = forward;
  flat.batch = 6;
  flat.attributes.pop_back();
  const Array x = Draw(24), labels{0, 3, 1, 2, 2, 0};
  const std::vector<KernelCase::Output> outputs{{24, -1}, {1, -1}};
  EXPECT_EQ(Execute<double>(forward, {x, labels}, outputs),
            Execute<double>(flat, {x, labels}, outputs));
  const Op backward = MakeOp(OpType::kSoftmaxLoss, Phase::kBackward, 2, attributes);
  Op flat_backward = backward;
  flat_backward.batch = 6;
  flat_backward.attributes.pop_back();
  EXPECT_EQ(Execute<double>(backward, {x, labels}, {{24, -1}}),
            Execute<double>(flat_backward, {x, labels}, {{24, -1}}));
  // A vocabulary of one word has no loss.
  const Op one = MakeOp(OpType::kSoftmaxLoss, Phase::kForward, 1, {{"elements", 1}, {"rows", 2}});
  EXPECT_EQ(Execute<double>(one, {{5, -3}, {0, 0}}, {{2, -1}, {1, -1}})[1], Array{0});
}

// Two steps of Adam and AdamW with the formulas of their papers.
TEST_F(SequenceTest, Adam) {
  constexpr double kRate = 0.1, kBeta1 = 0.8, kBeta2 = 0.9, kEpsilon = 1e-3, kDecay = 0.05;
  for (const OpType type : {OpType::kAdam, OpType::kAdamW}) {
    const Op op = MakeOp(type, Phase::kUpdate, 1,
                         {{"elements", 5 + 3},
                          {"learning_rate", kRate},
                          {"beta1", kBeta1},
                          {"beta2", kBeta2},
                          {"epsilon", kEpsilon},
                          {"weight_decay", kDecay},
                          {"master", 0}});
    std::vector<Array> inputs;
    std::vector<KernelCase::Output> outputs;
    for (const size_t count : {5, 3}) {
      const int first = static_cast<int>(inputs.size());
      inputs.insert(inputs.end(), {Draw(count), Draw(count), Array(count), Array(count), {0}});
      for (const int i : {0, 2, 3, 4}) outputs.push_back({inputs[first + i].size(), first + i});
    }
    std::vector<Array> want = inputs;
    for (int step = 1; step <= 2; ++step) {
      const std::vector<Array> got = Execute<double>(op, inputs, outputs);
      const std::vector<Array> rounded = Execute<float>(op, inputs, outputs);
      for (size_t part = 0; part < 2; ++part) {
        Array &w = want[part * 5], &m = want[part * 5 + 2], &v = want[part * 5 + 3];
        for (size_t i = 0; i < w.size(); ++i) {
          double g = want[part * 5 + 1][i];
          if (type == OpType::kAdam) g += kDecay * w[i];
          if (type == OpType::kAdamW) w[i] -= kRate * kDecay * w[i];
          m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
          v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
          const double mean = m[i] / (1 - std::pow(kBeta1, step));
          w[i] -= kRate * mean / (std::sqrt(v[i] / (1 - std::pow(kBeta2, step))) + kEpsilon);
        }
        want[part * 5 + 4] = {static_cast<double>(step)};
        for (const size_t i : {0, 2, 3, 4}) {
          const size_t output = part * 4 + (i == 0 ? 0 : i - 1);
          ExpectClose(got[output], want[part * 5 + i], 1e-9, "adam");
          ExpectClose(rounded[output], got[output], 1e-4, "adam in float");
          inputs[part * 5 + i] = got[output];
        }
      }
    }
    Op short_weights = op;
    short_weights.attributes.back().value = 1;
    EXPECT_THROW(Execute<float>(short_weights, inputs, outputs), InputError);
  }
}

}  // namespace
}  // namespace spillway::testing
