// Relu, dropout, add, fork, concat and sgd.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backend/cpu/operands.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"

namespace spillway::cpu {

template <typename Scalar>
void RunRelu(const Call<Scalar>& call) {
  const int64_t count = Product(call.op, {call.op.batch, IntOf(call.op, "elements")});
  const Scalar* in = call.Input(0, count);
  Scalar* out = call.Output(0, count);
  if (call.op.phase == Phase::kForward) {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i] <= 0 ? Scalar(0) : in[i];
    return;
  }
  const Scalar* dy = call.Input(1, count);
  const bool accumulate = Accumulates(call.op, 0);
  for (int64_t i = 0; i < count; ++i) {
    const Scalar y = in[i];
    Store(out, i, y > 0 ? dy[i] : y <= 0 ? Scalar(0) : y, accumulate);  // the last: NaN
  }
}

template <typename Scalar>
void RunDropout(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t count = Product(op, {op.batch, IntOf(op, "elements")});
  const double ratio = NumberOf(op, "ratio");
  if (!(ratio >= 0 && ratio < 1)) {
    throw InputError(fmt::format(
        "op '{}' (dropout): attribute 'ratio' is {}, expected a number in [0, 1)", op.name, ratio));
  }
  const Scalar* in = call.Input(0, count);
  Scalar* out = call.Output(0, count);
  const auto scale = static_cast<Scalar>(1 / (1 - ratio));
  const auto threshold = static_cast<float>(ratio);
  const bool accumulate = op.phase == Phase::kBackward && Accumulates(op, 0);
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
  const int64_t count = Product(call.op, {call.op.batch, IntOf(call.op, "elements")});
  const Scalar* in = call.Input(0, count);
  if (call.op.phase == Phase::kForward) {
    const Scalar* other = call.Input(1, count);
    Scalar* y = call.Output(0, count);
    for (int64_t i = 0; i < count; ++i) y[i] = in[i] + other[i];
    return;
  }
  for (size_t part = 0; part < call.outputs.size(); ++part) {
    Scalar* dx = call.Output(part, count);
    const bool accumulate = Accumulates(call.op, part);
    for (int64_t i = 0; i < count; ++i) Store(dx, i, in[i], accumulate);
  }
}

template <typename Scalar>
void RunFork(const Call<Scalar>& call) {
  const int64_t count = Product(call.op, {call.op.batch, IntOf(call.op, "elements")});
  const auto parts = static_cast<size_t>(IntOf(call.op, "parts", 1));
  if (call.op.phase == Phase::kForward) {
    const Scalar* x = call.Input(0, count);
    for (size_t part = 0; part < parts; ++part) {
      Scalar* y = call.Output(part, count);
      if (y != x) std::copy_n(x, count, y);
    }
    return;
  }
  Scalar* dx = call.Output(0, count);
  std::vector<const Scalar*> dy;
  for (size_t part = 0; part < parts; ++part) dy.push_back(call.Input(part, count));
  const bool accumulate = Accumulates(call.op, 0);
  for (int64_t i = 0; i < count; ++i) {
    Scalar sum = dy[0][i];
    for (size_t part = 1; part < parts; ++part) sum += dy[part][i];
    Store(dx, i, sum, accumulate);
  }
}

template <typename Scalar>
void RunConcat(const Call<Scalar>& call) {
  const Op& op = call.op;
  const auto parts = static_cast<size_t>(IntOf(op, "parts", 1));
  const auto length = [&](size_t part) {  // of the part in a sample
    return Product(op, {op.IntAttribute(fmt::format("channels_{}", part)), IntOf(op, "height"),
                        IntOf(op, "width")});
  };
  int64_t total = 0;
  for (size_t part = 0; part < parts; ++part) total = Product(op, {1, total + length(part)});
  int64_t offset = 0;  // of the part in a sample of the whole
  for (size_t part = 0; part < parts; ++part) {
    const int64_t size = length(part);
    if (op.phase == Phase::kForward) {
      const Scalar* x = call.Input(part, Product(op, {op.batch, size}));
      Scalar* y = call.Output(0, Product(op, {op.batch, total}));
      for (int64_t n = 0; n < op.batch; ++n) {
        std::copy_n(x + n * size, size, y + n * total + offset);
      }
    } else {
      const Scalar* dy = call.Input(0, Product(op, {op.batch, total}));
      Scalar* dx = call.Output(part, Product(op, {op.batch, size}));
      const bool accumulate = Accumulates(op, part);
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
void RunSgd(const Call<Scalar>& call) {
  const Op& op = call.op;
  if (call.inputs.size() % 3 != 0 || call.outputs.size() * 3 != call.inputs.size() * 2) {
    throw InputError(
        fmt::format("op '{}' (sgd) has {} inputs and {} outputs, needs 3 and 2 per parameter",
                    op.name, call.inputs.size(), call.outputs.size()));
  }
  const size_t parameters = call.inputs.size() / 3;
  int64_t total = 0;
  for (size_t i = 0; i < parameters; ++i) {
    total += static_cast<int64_t>(call.inputs[3 * i].size() / sizeof(Scalar));
  }
  if (total != op.IntAttribute("elements")) {
    throw InputError(
        fmt::format("op '{}' (sgd): the parameters have {} elements, attribute 'elements' is {}",
                    op.name, total, op.IntAttribute("elements")));
  }
  const auto learning_rate = static_cast<Scalar>(NumberOf(op, "learning_rate"));
  const auto momentum = static_cast<Scalar>(NumberOf(op, "momentum"));
  const auto weight_decay = static_cast<Scalar>(NumberOf(op, "weight_decay"));
  for (size_t i = 0; i < parameters; ++i) {
    const auto count = static_cast<int64_t>(call.inputs[3 * i].size() / sizeof(Scalar));
    const Scalar* w = call.Input(3 * i, count);
    const Scalar* dw = call.Input(3 * i + 1, count);
    const Scalar* m = call.Input(3 * i + 2, count);
    Scalar* next_w = call.Output(2 * i, count);
    Scalar* next_m = call.Output(2 * i + 1, count);
    for (int64_t j = 0; j < count; ++j) {
      const Scalar old = w[j];
      const Scalar velocity = momentum * m[j] + (dw[j] + weight_decay * old);
      next_m[j] = velocity;
      next_w[j] = old - learning_rate * velocity;
    }
  }
}

template void RunRelu(const Call<float>&);
template void RunRelu(const Call<double>&);
template void RunDropout(const Call<float>&);
template void RunDropout(const Call<double>&);
template void RunAdd(const Call<float>&);
template void RunAdd(const Call<double>&);
template void RunFork(const Call<float>&);
template void RunFork(const Call<double>&);
template void RunConcat(const Call<float>&);
template void RunConcat(const Call<double>&);
template void RunSgd(const Call<float>&);
template void RunSgd(const Call<double>&);

}  // namespace spillway::cpu
