// Layer norm, RMS norm, embeddings, rotary embedding and the choice of one position.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/operands.h"
#include "traces/base/error.h"

namespace spillway::cpu {
namespace {

// The geometry of an op that treats each position of each sample alike.
struct Rows {
  int64_t count, features;

  explicit Rows(const Op& op)
      : count(Product(op, {op.batch, op.IntAttribute("rows", 1)})),
        features(op.IntAttribute("features", 0)) {}

  int64_t elements(const Op& op) const { return Product(op, {count, features}); }
};

// Computes y = weight * (x - mean) * inv_std + bias over the features of each row. RMS norm has
// neither mean nor bias. Sums are double for both scalar types.
template <typename Scalar>
void NormForward(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Rows rows(op);
  const bool centred = op.type == OpType::kLayerNorm;
  const bool training = op.Flag("training");
  const double epsilon = op.NumberAttribute("epsilon");
  const Scalar* x = call.Input(kX, rows.elements(op));
  const Scalar* weight = call.Input(kWeight, rows.features);
  const Scalar* bias = centred ? call.Input(kBias, rows.features) : nullptr;
  Scalar* y = call.Output(kY, rows.elements(op));
  Scalar* saved_mean = training && centred ? call.Output(kMean, rows.count) : nullptr;
  Scalar* saved_inv_std = training ? call.Output(kInvStd, rows.count) : nullptr;
  const auto count = static_cast<double>(rows.features);
  for (int64_t row = 0; row < rows.count; ++row, x += rows.features, y += rows.features) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; centred && i < rows.features; ++i) mean += static_cast<double>(x[i]);
    mean /= count;
    for (int64_t i = 0; i < rows.features; ++i) {
      const double deviation = static_cast<double>(x[i]) - mean;
      variance += deviation * deviation;
    }
    const double inv_std = 1 / std::sqrt(variance / count + epsilon);
    if (saved_mean != nullptr) saved_mean[row] = static_cast<Scalar>(mean);
    if (training) saved_inv_std[row] = static_cast<Scalar>(inv_std);
    for (int64_t i = 0; i < rows.features; ++i) {
      const double normal = (static_cast<double>(x[i]) - mean) * inv_std;
      y[i] = weight[i] * static_cast<Scalar>(normal) + (centred ? bias[i] : Scalar(0));
    }
  }
}

// Computes dx = inv_std * (g - mean(g) - x^ * mean(g * x^)) with g = weight * dy and x^ = (x -
// mean) * inv_std, where each mean() is taken over the row. RMS norm lacks mean(g).
template <typename Scalar>
void NormBackward(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Rows rows(op);
  const bool centred = op.type == OpType::kLayerNorm;
  const Scalar* x = call.Input(kX, rows.elements(op));
  const Scalar* weight = call.Input(kWeight, rows.features);
  const Scalar* dy = call.Input(kDy, rows.elements(op));
  const Scalar* mean = centred ? call.Input(kMean, rows.count) : nullptr;
  const Scalar* inv_std = call.Input(kInvStd, rows.count);
  Scalar* dx = op.Flag("needs_dx") ? call.Output(kDx, rows.elements(op)) : nullptr;
  const bool accumulate = op.Accumulates(0);
  const auto features = static_cast<size_t>(rows.features);
  std::vector<double> normal(features), dweight(features), dbias(features);
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t first = row * rows.features;
    const double centre = centred ? static_cast<double>(mean[row]) : 0;
    const auto scale = static_cast<double>(inv_std[row]);
    double sum = 0, product = 0;
    for (size_t i = 0; i < features; ++i) {
      const auto at = first + static_cast<int64_t>(i);
      const auto gradient = static_cast<double>(dy[at]);
      normal[i] = (static_cast<double>(x[at]) - centre) * scale;
      dweight[i] += gradient * normal[i];
      dbias[i] += gradient;
      if (centred) sum += gradient * static_cast<double>(weight[i]);
      product += gradient * static_cast<double>(weight[i]) * normal[i];
    }
    if (dx == nullptr) continue;
    for (size_t i = 0; i < features; ++i) {
      const auto at = first + static_cast<int64_t>(i);
      const double gradient = static_cast<double>(dy[at]) * static_cast<double>(weight[i]);
      const double mean_part = (sum + normal[i] * product) / static_cast<double>(rows.features);
      Store(dx, at, static_cast<Scalar>(scale * (gradient - mean_part)), accumulate);
    }
  }
  const auto store = [&](Role role, const std::vector<double>& gradient) {
    const std::vector<Scalar> values(gradient.begin(), gradient.end());
    StoreParameterGradient(call, role, values.data(), rows.features);
  };
  store(kWeight, dweight);
  if (centred) store(kBias, dbias);
}

template <typename Scalar>
void RunNorm(const Call<Scalar>& call) {
  if (call.op.phase == Phase::kForward) return NormForward(call);
  NormBackward(call);
}

// Returns the tokens. Throws `InputError` if one is not in the vocabulary.
template <typename Scalar>
const int32_t* Tokens(const Call<Scalar>& call, int64_t count, int64_t vocabulary) {
  const int32_t* tokens = call.Integers(kIndices, count);
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocabulary) continue;
    throw InputError(fmt::format("op '{}' (embedding): token {} is {}, expected 0 to {}",
                                 call.op.name, i, tokens[i], vocabulary - 1));
  }
  return tokens;
}

template <typename Scalar>
void RunEmbedding(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Rows rows(op);
  const int64_t vocabulary = op.IntAttribute("vocabulary", 1);
  const int64_t table = Product(op, {vocabulary, rows.features});
  const int32_t* tokens = Tokens(call, rows.count, vocabulary);
  if (op.phase == Phase::kForward) {
    const Scalar* weight = call.Input(kWeight, table);
    Scalar* y = call.Output(kY, rows.elements(op));
    for (int64_t row = 0; row < rows.count; ++row) {
      std::copy_n(weight + tokens[row] * rows.features, rows.features, y + row * rows.features);
    }
    return;
  }
  const Scalar* dy = call.Input(kDy, rows.elements(op));
  std::vector<Scalar> dweight(static_cast<size_t>(table));
  for (int64_t row = 0; row < rows.count; ++row) {
    Scalar* to = dweight.data() + tokens[row] * rows.features;
    for (int64_t i = 0; i < rows.features; ++i) to[i] += dy[row * rows.features + i];
  }
  StoreParameterGradient(call, kWeight, dweight.data(), table);
}

// Adds to each position its row of a table. With a class token, x is a map whose pixels become the
// positions behind the token.
template <typename Scalar>
void RunPositionEmbedding(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 0);
  const int64_t span = op.IntAttribute("span", 1);
  const bool token = op.Flag("class_token");
  const int64_t pixels = length - (token ? 1 : 0);
  const int64_t table =
      Product(op, {op.IntAttribute("positions", (length - 1) / span + 1), features});
  const int64_t y_size = Product(op, {op.batch, length, features});
  const int64_t x_size = Product(op, {op.batch, pixels, features});
  // Returns the element of x that belongs to position `t`, which is no class token.
  const auto element = [&](int64_t n, int64_t t, int64_t i) {
    return token ? (n * features + i) * pixels + t - 1 : (n * length + t) * features + i;
  };
  const bool forward = op.phase == Phase::kForward;
  const Scalar* x = forward ? call.Input(kX, x_size) : nullptr;
  const Scalar* weight = forward ? call.Input(kWeight, table) : nullptr;
  const Scalar* bias = forward && token ? call.Input(kBias, features) : nullptr;
  Scalar* y = forward ? call.Output(kY, y_size) : nullptr;
  const Scalar* dy = forward ? nullptr : call.Input(kDy, y_size);
  Scalar* dx = !forward && op.Flag("needs_dx") ? call.Output(kDx, x_size) : nullptr;
  std::vector<Scalar> dweight(static_cast<size_t>(forward ? 0 : table));
  std::vector<Scalar> dbias(static_cast<size_t>(features));
  for (int64_t n = 0; n < op.batch; ++n) {
    for (int64_t t = 0; t < length; ++t) {
      const bool is_token = token && t == 0;
      for (int64_t i = 0; i < features; ++i) {
        const int64_t at = (n * length + t) * features + i;
        const int64_t position = t / span * features + i;
        if (forward) {
          y[at] = (is_token ? bias[i] : x[element(n, t, i)]) + weight[position];
          continue;
        }
        dweight[static_cast<size_t>(position)] += dy[at];
        if (is_token) dbias[static_cast<size_t>(i)] += dy[at];
        if (dx != nullptr && !is_token) Store(dx, element(n, t, i), dy[at], op.Accumulates(0));
      }
    }
  }
  if (forward) return;
  StoreParameterGradient(call, kWeight, dweight.data(), table);
  if (token) StoreParameterGradient(call, kBias, dbias.data(), features);
}

// Rotates the pair (i, i + head_dim / 2) of each head at position t by t * theta^(-2 i / head_dim);
// backward rotates back.
template <typename Scalar>
void RunRotary(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t heads = op.IntAttribute("heads", 1);
  const int64_t head_dim = op.IntAttribute("head_dim", 2);
  const int64_t half = head_dim / 2;
  if (head_dim % 2 != 0) {
    throw InputError(
        fmt::format("op '{}' (rotary): attribute 'head_dim' is {}, expected an even "
                    "number",
                    op.name, head_dim));
  }
  const bool forward = op.phase == Phase::kForward;
  const int64_t total = Product(op, {op.batch, length, heads, head_dim});
  const Scalar* in = call.Input(forward ? kX : kDy, total);
  Scalar* out = call.Output(forward ? kY : kDx, total);
  const bool accumulate = !forward && op.Accumulates(0);
  const double theta = op.NumberAttribute("theta");
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
      const auto cosine = static_cast<Scalar>(std::cos(angle));
      const auto sine = static_cast<Scalar>(forward ? std::sin(angle) : -std::sin(angle));
      for (int64_t n = 0; n < op.batch; ++n) {
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t a = ((n * length + t) * heads + h) * head_dim + i;
          const Scalar first = in[a], second = in[a + half];
          Store(out, a, first * cosine - second * sine, accumulate);
          Store(out, a + half, second * cosine + first * sine, accumulate);
        }
      }
    }
  }
}

template <typename Scalar>
void RunSelect(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 0);
  const int64_t index = op.IntAttribute("index", 0, length - 1);
  const bool forward = op.phase == Phase::kForward;
  const int64_t one = Product(op, {op.batch, features});
  const int64_t all = Product(op, {op.batch, length, features});
  const Scalar* in = call.Input(forward ? kX : kDy, forward ? all : one);
  Scalar* out = call.Output(forward ? kY : kDx, forward ? one : all);
  if (!forward && !op.Accumulates(0)) std::fill_n(out, all, Scalar(0));
  for (int64_t n = 0; n < op.batch; ++n) {
    for (int64_t i = 0; i < features; ++i) {
      const int64_t at = (n * length + index) * features + i;
      if (forward) {
        out[n * features + i] = in[at];
      } else {
        out[at] += in[n * features + i];
      }
    }
  }
}

}  // namespace

template <typename Scalar>
bool RunSequence(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kLayerNorm:
    case OpType::kRmsNorm:
      return RunNorm(call), true;
    case OpType::kEmbedding:
      return RunEmbedding(call), true;
    case OpType::kPositionEmbedding:
      return RunPositionEmbedding(call), true;
    case OpType::kRotary:
      return RunRotary(call), true;
    case OpType::kSelect:
      return RunSelect(call), true;
    default:
      return false;
  }
}

template bool RunSequence(const Call<float>&);
template bool RunSequence(const Call<double>&);

}  // namespace spillway::cpu
