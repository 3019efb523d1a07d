// Attention as one op, and as a product, a softmax and a product. Plain loops.

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/operands.h"

namespace spillway::cpu {
namespace {

// The geometry of attention. Queries and outputs are [batch, rows, heads, head_dim], keys and
// values [batch, rows, kv_heads, head_dim], scores [batch, heads, rows, rows].
struct Heads {
  int64_t batch, rows, heads, kv_heads, head_dim;
  int64_t queries, keys, scores;  // elements

  explicit Heads(const Op& op)
      : batch(op.batch),
        rows(op.IntAttribute("rows", 1)),
        heads(op.IntAttribute("heads", 1)),
        kv_heads(op.IntAttribute("kv_heads", 1, heads)),
        head_dim(op.IntAttribute("head_dim", 0)),
        queries(Product(op, {batch, rows, heads, head_dim})),
        keys(Product(op, {batch, rows, kv_heads, head_dim})),
        scores(Product(op, {batch, heads, rows, rows})) {}

  // Return the first element of a position's head. The keys' head is that which serves the query's.
  int64_t Query(int64_t n, int64_t h, int64_t t) const {
    return ((n * rows + t) * heads + h) * head_dim;
  }
  int64_t Key(int64_t n, int64_t h, int64_t t) const {
    return ((n * rows + t) * kv_heads + h * kv_heads / heads) * head_dim;
  }
  int64_t Score(int64_t n, int64_t h, int64_t t) const {
    return ((n * heads + h) * rows + t) * rows;
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }

  // Calls visit(n, h, t) for each sample, head and query.
  template <typename Visitor>
  void ForEach(const Visitor& visit) const {
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < rows; ++t) visit(n, h, t);
      }
    }
  }
};

template <typename Scalar>
Scalar Dot(const Scalar* a, const Scalar* b, int64_t count) {
  Scalar sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Adds factor * from to `to`.
template <typename Scalar>
void AddScaled(Scalar factor, const Scalar* from, Scalar* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// Turns the scores into probabilities and returns the logarithm of the sum of their exponentials.
template <typename Scalar>
Scalar Softmax(const Scalar* scores, Scalar* probabilities, int64_t count) {
  const Scalar largest = *std::max_element(scores, scores + count);
  Scalar sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    probabilities[j] = std::exp(scores[j] - largest);
    sum += probabilities[j];
  }
  for (int64_t j = 0; j < count; ++j) probabilities[j] /= sum;
  return largest + std::log(sum);
}

// Returns a gradient that backward adds to. It is 0 at first unless the op accumulates there.
template <typename Scalar>
Scalar* Begin(const Call<Scalar>& call, Role role, int64_t elements) {
  Scalar* gradient = call.Output(role, elements);
  if (!call.op.Accumulates(OutputIndex(call.op, role).value())) {
    std::fill_n(gradient, elements, Scalar(0));
  }
  return gradient;
}

template <typename Scalar>
void RunScores(const Call<Scalar>& call) {
  const Heads s(call.op);
  const auto scale = static_cast<Scalar>(s.scale());
  const Scalar* q = call.Input(kX, s.queries);
  const Scalar* k = call.Input(kX2, s.keys);
  if (call.op.phase == Phase::kForward) {
    Scalar* y = call.Output(kY, s.scores);
    s.ForEach([&](int64_t n, int64_t h, int64_t t) {
      for (int64_t j = 0; j < s.rows; ++j) {
        y[s.Score(n, h, t) + j] = scale * Dot(q + s.Query(n, h, t), k + s.Key(n, h, j), s.head_dim);
      }
    });
    return;
  }
  const Scalar* dy = call.Input(kDy, s.scores);
  Scalar* dq = Begin(call, kDx, s.queries);
  Scalar* dk = Begin(call, kDx2, s.keys);
  s.ForEach([&](int64_t n, int64_t h, int64_t t) {
    for (int64_t j = 0; j < s.rows; ++j) {
      const Scalar gradient = scale * dy[s.Score(n, h, t) + j];
      AddScaled(gradient, k + s.Key(n, h, j), dq + s.Query(n, h, t), s.head_dim);
      AddScaled(gradient, q + s.Query(n, h, t), dk + s.Key(n, h, j), s.head_dim);
    }
  });
}

// Computes the softmax of each row. If causal, row t of a square has probabilities 0 behind its
// element t, and the scores there are not read.
template <typename Scalar>
void RunSoftmax(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t columns = op.IntAttribute("columns", 1);
  const int64_t rows = Product(op, {op.batch, op.IntAttribute("rows", 1)});
  const int64_t total = Product(op, {rows, columns});
  const bool causal = op.Flag("causal");
  const bool forward = op.phase == Phase::kForward;
  const Scalar* in = forward ? call.Input(kX, total) : call.Input(kDy, total);
  const Scalar* y = forward ? nullptr : call.Input(kY, total);
  Scalar* out = call.Output(forward ? kY : kDx, total);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * columns;
    const int64_t count = causal ? row % columns + 1 : columns;
    if (forward) {
      Softmax(in + first, out + first, count);
      std::fill_n(out + first + count, columns - count, Scalar(0));
      continue;
    }
    const Scalar sum = Dot(in + first, y + first, count);
    for (int64_t i = first; i < first + columns; ++i) {
      const Scalar gradient = i < first + count ? y[i] * (in[i] - sum) : Scalar(0);
      Store(out, i, gradient, op.Accumulates(0));
    }
  }
}

template <typename Scalar>
void RunValues(const Call<Scalar>& call) {
  const Heads s(call.op);
  const Scalar* p = call.Input(kX, s.scores);
  const Scalar* v = call.Input(kX2, s.keys);
  if (call.op.phase == Phase::kForward) {
    Scalar* y = call.Output(kY, s.queries);
    std::fill_n(y, s.queries, Scalar(0));
    s.ForEach([&](int64_t n, int64_t h, int64_t t) {
      for (int64_t j = 0; j < s.rows; ++j) {
        AddScaled(p[s.Score(n, h, t) + j], v + s.Key(n, h, j), y + s.Query(n, h, t), s.head_dim);
      }
    });
    return;
  }
  const Scalar* dy = call.Input(kDy, s.queries);
  Scalar* dp = call.Output(kDx, s.scores);
  Scalar* dv = Begin(call, kDx2, s.keys);
  s.ForEach([&](int64_t n, int64_t h, int64_t t) {
    for (int64_t j = 0; j < s.rows; ++j) {
      const int64_t at = s.Score(n, h, t) + j;
      Store(dp, at, Dot(dy + s.Query(n, h, t), v + s.Key(n, h, j), s.head_dim),
            call.op.Accumulates(0));
      AddScaled(p[at], dy + s.Query(n, h, t), dv + s.Key(n, h, j), s.head_dim);
    }
  });
}

// Keeps no scores: backward computes the probabilities again from the logarithm of the sum of the
// exponentials (FlashAttention, Dao et al. 2022).
template <typename Scalar>
void RunFused(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Heads s(op);
  const auto scale = static_cast<Scalar>(s.scale());
  const bool causal = op.Flag("causal");
  const bool forward = op.phase == Phase::kForward;
  const Scalar* q = call.Input(kX, s.queries);
  const Scalar* k = call.Input(kX2, s.keys);
  const Scalar* v = call.Input(kX3, s.keys);
  const int64_t sums = Product(op, {s.batch, s.heads, s.rows});
  std::vector<Scalar> p(static_cast<size_t>(s.rows));
  const auto for_each_row = [&](const auto& visit) {
    s.ForEach([&](int64_t n, int64_t h, int64_t t) {
      const int64_t count = causal ? t + 1 : s.rows;
      for (int64_t j = 0; j < count; ++j) {
        p[static_cast<size_t>(j)] =
            scale * Dot(q + s.Query(n, h, t), k + s.Key(n, h, j), s.head_dim);
      }
      visit(n, h, t, count, (n * s.heads + h) * s.rows + t);
    });
  };
  if (forward) {
    Scalar* y = call.Output(kY, s.queries);
    Scalar* log_sum = op.Flag("training") ? call.Output(kLogSumExp, sums) : nullptr;
    std::fill_n(y, s.queries, Scalar(0));
    for_each_row([&](int64_t n, int64_t h, int64_t t, int64_t count, int64_t row) {
      const Scalar sum = Softmax(p.data(), p.data(), count);
      if (log_sum != nullptr) log_sum[row] = sum;
      for (int64_t j = 0; j < count; ++j) {
        AddScaled(p[static_cast<size_t>(j)], v + s.Key(n, h, j), y + s.Query(n, h, t), s.head_dim);
      }
    });
    return;
  }
  const Scalar* y = call.Input(kY, s.queries);
  const Scalar* dy = call.Input(kDy, s.queries);
  const Scalar* log_sum = call.Input(kLogSumExp, sums);
  Scalar* dq = Begin(call, kDx, s.queries);
  Scalar* dk = Begin(call, kDx2, s.keys);
  Scalar* dv = Begin(call, kDx3, s.keys);
  for_each_row([&](int64_t n, int64_t h, int64_t t, int64_t count, int64_t row) {
    const int64_t query = s.Query(n, h, t);
    const Scalar sum = Dot(dy + query, y + query, s.head_dim);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t key = s.Key(n, h, j);
      const Scalar probability = std::exp(p[static_cast<size_t>(j)] - log_sum[row]);
      const Scalar gradient = scale * probability * (Dot(dy + query, v + key, s.head_dim) - sum);
      AddScaled(gradient, k + key, dq + query, s.head_dim);
      AddScaled(gradient, q + query, dk + key, s.head_dim);
      AddScaled(probability, dy + query, dv + key, s.head_dim);
    }
  });
}

}  // namespace

template <typename Scalar>
bool RunAttention(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kAttentionScores:
      return RunScores(call), true;
    case OpType::kSoftmax:
      return RunSoftmax(call), true;
    case OpType::kAttentionValues:
      return RunValues(call), true;
    case OpType::kAttention:
      return RunFused(call), true;
    default:
      return false;
  }
}

template bool RunAttention(const Call<float>&);
template bool RunAttention(const Call<double>&);

}  // namespace spillway::cpu
