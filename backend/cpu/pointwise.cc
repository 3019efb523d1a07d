// Activations, dropout, add, mul, fork, concat and rows.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "backend/cpu/operands.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"

namespace spillway::cpu {
namespace {

int64_t Elements(const Op& op) { return Product(op, {op.batch, op.IntAttribute("elements", 0)}); }

// Computes y = value(x) in forward and dx = gradient(s, dy) in backward. s is the operand that
// backward reads by the op table: x or y.
template <typename Scalar, typename Value, typename Gradient>
void RunActivation(const Call<Scalar>& call, Value value, Gradient gradient) {
  const int64_t count = Elements(call.op);
  if (call.op.phase == Phase::kForward) {
    const Scalar* x = call.Input(kX, count);
    Scalar* y = call.Output(kY, count);
    for (int64_t i = 0; i < count; ++i) y[i] = value(x[i]);
    return;
  }
  const Scalar* saved = call.Input(InputIndex(call.op, kY) ? kY : kX, count);
  const Scalar* dy = call.Input(kDy, count);
  Scalar* dx = call.Output(kDx, count);
  const bool accumulate = call.op.Accumulates(0);
  for (int64_t i = 0; i < count; ++i) Store(dx, i, gradient(saved[i], dy[i]), accumulate);
}

template <typename Scalar>
void RunRelu(const Call<Scalar>& call) {
  RunActivation(
      call, [](Scalar x) { return x <= 0 ? Scalar(0) : x; },
      [](Scalar y, Scalar dy) { return y > 0    ? dy
                                       : y <= 0 ? Scalar(0)
                                                : y; });  // y is NaN
}

// Computes the exact form of GELU, x times the normal distribution function at x (Hendrycks and
// Gimpel, 2016).
template <typename Scalar>
void RunGelu(const Call<Scalar>& call) {
  const auto distribution = [](Scalar x) {
    return (1 + std::erf(x * static_cast<Scalar>(std::numbers::sqrt2 / 2))) / 2;
  };
  const auto density = [](Scalar x) {
    constexpr double kScale = std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2;
    return std::exp(-x * x / 2) * static_cast<Scalar>(kScale);
  };
  RunActivation(
      call, [=](Scalar x) { return x * distribution(x); },
      [=](Scalar x, Scalar dy) { return dy * (distribution(x) + x * density(x)); });
}

template <typename Scalar>
void RunSilu(const Call<Scalar>& call) {
  const auto sigmoid = [](Scalar x) { return 1 / (1 + std::exp(-x)); };
  RunActivation(
      call, [=](Scalar x) { return x * sigmoid(x); },
      [=](Scalar x, Scalar dy) { return dy * sigmoid(x) * (1 + x * (1 - sigmoid(x))); });
}

template <typename Scalar>
void RunDropout(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t count = Elements(op);
  const bool forward = op.phase == Phase::kForward;
  const double ratio = op.NumberAttribute("ratio");
  if (!(ratio >= 0 && ratio < 1)) {
    throw InputError(fmt::format(
        "op '{}' (dropout): attribute 'ratio' is {}, expected a number in [0, 1)", op.name, ratio));
  }
  const Scalar* in = call.Input(forward ? kX : kDy, count);
  Scalar* out = call.Output(forward ? kY : kDx, count);
  const auto scale = static_cast<Scalar>(1 / (1 - ratio));
  const auto threshold = static_cast<float>(ratio);
  const bool accumulate = !forward && op.Accumulates(0);
  for (int64_t first = 0; first < count; first += 4) {
    const Philox4 random = PhiloxGroup(call.seed, static_cast<uint32_t>(op.layer), first / 4);
    for (int64_t i = first; i < std::min(first + 4, count); ++i) {
      const bool keep = UnitFloat(random.word[i - first]) >= threshold;
      Store(out, i, keep ? in[i] * scale : Scalar(0), accumulate);
    }
  }
}

template <typename Scalar>
void RunAdd(const Call<Scalar>& call) {
  const int64_t count = Elements(call.op);
  if (call.op.phase == Phase::kForward) {
    const Scalar* a = call.Input(kX, count, 0);
    const Scalar* b = call.Input(kX, count, 1);
    Scalar* y = call.Output(kY, count);
    for (int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
    return;
  }
  const Scalar* dy = call.Input(kDy, count);
  for (size_t part = 0; part < call.outputs.size(); ++part) {
    Scalar* dx = call.Output(kDx, count, part);
    const bool accumulate = call.op.Accumulates(part);
    for (int64_t i = 0; i < count; ++i) Store(dx, i, dy[i], accumulate);
  }
}

template <typename Scalar>
void RunMul(const Call<Scalar>& call) {
  const int64_t count = Elements(call.op);
  const Scalar* a = call.Input(kX, count);
  const Scalar* b = call.Input(kX2, count);
  if (call.op.phase == Phase::kForward) {
    Scalar* y = call.Output(kY, count);
    for (int64_t i = 0; i < count; ++i) y[i] = a[i] * b[i];
    return;
  }
  const Scalar* dy = call.Input(kDy, count);
  Scalar* da = call.Output(kDx, count);
  Scalar* db = call.Output(kDx2, count);
  for (int64_t i = 0; i < count; ++i) {
    Store(da, i, dy[i] * b[i], call.op.Accumulates(0));
    Store(db, i, dy[i] * a[i], call.op.Accumulates(1));
  }
}

template <typename Scalar>
void RunFork(const Call<Scalar>& call) {
  const int64_t count = Elements(call.op);
  const auto parts = static_cast<size_t>(call.op.IntAttribute("parts", 1));
  if (call.op.phase == Phase::kForward) {
    const Scalar* x = call.Input(kX, count);
    for (size_t part = 0; part < parts; ++part) {
      Scalar* y = call.Output(kY, count, part);
      if (y != x) std::copy_n(x, count, y);
    }
    return;
  }
  Scalar* dx = call.Output(kDx, count);
  std::vector<const Scalar*> dy;
  for (size_t part = 0; part < parts; ++part) dy.push_back(call.Input(kDy, count, part));
  const bool accumulate = call.op.Accumulates(0);
  for (int64_t i = 0; i < count; ++i) {
    Scalar sum = dy[0][i];
    for (size_t part = 1; part < parts; ++part) sum += dy[part][i];
    Store(dx, i, sum, accumulate);
  }
}

template <typename Scalar>
void RunConcat(const Call<Scalar>& call) {
  const Op& op = call.op;
  const auto parts = static_cast<size_t>(op.IntAttribute("parts", 1));
  const auto length = [&](size_t part) {  // the part's elements per sample
    return Product(op, {op.IntAttribute(fmt::format("channels_{}", part)),
                        op.IntAttribute("height", 0), op.IntAttribute("width", 0)});
  };
  int64_t total = 0;
  for (size_t part = 0; part < parts; ++part) total = Product(op, {1, total + length(part)});
  int64_t offset = 0;  // where the part begins in a sample of the whole output
  for (size_t part = 0; part < parts; ++part) {
    const int64_t size = length(part);
    if (op.phase == Phase::kForward) {
      const Scalar* x = call.Input(kX, Product(op, {op.batch, size}), part);
      Scalar* y = call.Output(kY, Product(op, {op.batch, total}));
      for (int64_t n = 0; n < op.batch; ++n) {
        std::copy_n(x + n * size, size, y + n * total + offset);
      }
    } else {
      const Scalar* dy = call.Input(kDy, Product(op, {op.batch, total}));
      Scalar* dx = call.Output(kDx, Product(op, {op.batch, size}), part);
      const bool accumulate = op.Accumulates(part);
      for (int64_t n = 0; n < op.batch; ++n) {
        for (int64_t i = 0; i < size; ++i) {
          Store(dx, n * size + i, dy[n * total + offset + i], accumulate);
        }
      }
    }
    offset += size;
  }
}

template <typename Scalar>
void RunRows(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t planes = Product(op, {op.batch, op.IntAttribute("channels", 0)});
  const int64_t width = op.IntAttribute("width", 0);
  const int64_t height = op.IntAttribute("height", 0);
  const int64_t first = op.IntAttribute("first_row", std::numeric_limits<int32_t>::min());
  Scalar* y = call.Output(kY, Product(op, {planes, height, width}));
  std::fill_n(y, planes * height * width,
              op.Flag("lowest") ? static_cast<Scalar>(std::numeric_limits<float>::lowest()) : 0);
  int64_t begin = -first;  // the row of y that the part's first row would be
  for (int64_t part = 0; part < op.IntAttribute("parts", 1); ++part) {
    const int64_t rows = op.IntAttribute(fmt::format("height_{}", part), 0);
    const Scalar* x = call.Input(kX, Product(op, {planes, rows, width}), static_cast<size_t>(part));
    const int64_t from = std::clamp<int64_t>(begin, 0, height);
    const int64_t to = std::clamp<int64_t>(begin + rows, from, height);
    for (int64_t plane = 0; plane < planes && from < to; ++plane) {
      std::copy_n(x + (plane * rows + from - begin) * width, (to - from) * width,
                  y + (plane * height + from) * width);
    }
    begin += rows;
  }
}

}  // namespace

template <typename Scalar>
bool RunPointwise(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kRelu:
      return RunRelu(call), true;
    case OpType::kGelu:
      return RunGelu(call), true;
    case OpType::kSilu:
      return RunSilu(call), true;
    case OpType::kDropout:
      return RunDropout(call), true;
    case OpType::kAdd:
      return RunAdd(call), true;
    case OpType::kMul:
      return RunMul(call), true;
    case OpType::kFork:
      return RunFork(call), true;
    case OpType::kConcat:
      return RunConcat(call), true;
    case OpType::kRows:
      return RunRows(call), true;
    default:
      return false;
  }
}

template bool RunPointwise(const Call<float>&);
template bool RunPointwise(const Call<double>&);

}  // namespace spillway::cpu
