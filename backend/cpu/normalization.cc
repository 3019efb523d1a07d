// Local response normalisation across channels, and softmax with its cross-entropy loss.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/operands.h"
#include "sim/core/error.h"

namespace spillway::cpu {

// y = x * s^-beta with s = k + alpha / size * (the sum of x^2 over the window of channels).
template <typename Scalar>
void RunLrn(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t channels = IntOf(op, "channels");
  const int64_t plane = Product(op, {IntOf(op, "height"), IntOf(op, "width")});
  const int64_t size = IntOf(op, "size", 1);
  const int64_t before = (size - 1) / 2;  // channels of the window before its centre
  const int64_t after = size - 1 - before;
  const auto share = static_cast<Scalar>(NumberOf(op, "alpha") / static_cast<double>(size));
  const auto beta = static_cast<Scalar>(NumberOf(op, "beta"));
  const auto k = static_cast<Scalar>(NumberOf(op, "k"));
  const int64_t elements = Product(op, {channels, plane});
  const int64_t total = Product(op, {op.batch, elements});
  const bool forward = op.phase == Phase::kForward;
  const Scalar* x = call.Input(0, total);
  const Scalar* y = forward ? nullptr : call.Input(1, total);
  const Scalar* dy = forward ? nullptr : call.Input(2, total);
  Scalar* out = call.Output(0, total);
  const bool accumulate = !forward && Accumulates(op, 0);

  // Calls visit(element, element of the channel at the same place) for the channels from
  // c - low to c + high, for every element of a sample.
  const auto for_each_neighbour = [&](int64_t low, int64_t high, const auto& visit) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t d = std::max<int64_t>(c - low, 0); d <= std::min(c + high, channels - 1); ++d) {
        for (int64_t i = 0; i < plane; ++i) visit(c * plane + i, d * plane + i);
      }
    }
  };
  std::vector<Scalar> scale(static_cast<size_t>(elements));
  std::vector<Scalar> sum(static_cast<size_t>(forward ? 0 : elements));
  for (int64_t first = 0; first < total; first += elements) {
    const Scalar* in = x + first;
    std::fill(scale.begin(), scale.end(), k);
    for_each_neighbour(before, after,
                       [&](int64_t i, int64_t j) { scale[i] += share * in[j] * in[j]; });
    if (forward) {
      for (int64_t i = 0; i < elements; ++i) out[first + i] = in[i] * std::pow(scale[i], -beta);
      continue;
    }
    std::fill(sum.begin(), sum.end(), Scalar(0));
    for_each_neighbour(after, before, [&](int64_t i, int64_t j) {  // i lies in the window of j
      sum[i] += dy[first + j] * y[first + j] / scale[j];
    });
    for (int64_t i = 0; i < elements; ++i) {
      const Scalar gradient =
          dy[first + i] * std::pow(scale[i], -beta) - 2 * share * beta * in[i] * sum[i];
      Store(out, first + i, gradient, accumulate);
    }
  }
}

template <typename Scalar>
void RunSoftmaxLoss(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t classes = IntOf(op, "elements", 1);
  const int64_t total = Product(op, {op.batch, classes});
  const Scalar* in = call.Input(0, total);
  const auto* labels = reinterpret_cast<const int32_t*>(
      TakeOperand(op, call.inputs, 1, "input", op.batch * int64_t{sizeof(int32_t)}));
  Scalar* out = call.Output(0, total);
  for (int64_t n = 0; n < op.batch; ++n) {
    if (labels[n] < 0 || labels[n] >= classes) {
      throw InputError(fmt::format("op '{}' (softmax_loss): label {} is {}, expected 0 to {}",
                                   op.name, n, labels[n], classes - 1));
    }
  }
  const auto scale = 1 / static_cast<Scalar>(op.batch);
  if (op.phase == Phase::kBackward) {
    for (int64_t n = 0; n < op.batch; ++n) {
      for (int64_t i = n * classes; i < (n + 1) * classes; ++i) {
        out[i] = scale * (in[i] - Scalar(i - n * classes == labels[n] ? 1 : 0));
      }
    }
    return;
  }
  Scalar loss = 0;
  for (int64_t n = 0; n < op.batch; ++n) {
    const Scalar* x = in + n * classes;
    Scalar* y = out + n * classes;
    const Scalar largest = *std::max_element(x, x + classes);
    Scalar sum = 0;
    for (int64_t i = 0; i < classes; ++i) {
      y[i] = std::exp(x[i] - largest);
      sum += y[i];
    }
    for (int64_t i = 0; i < classes; ++i) y[i] /= sum;
    // In float's range for both types; a NaN stays.
    const auto least = static_cast<Scalar>(std::numeric_limits<float>::min());
    loss -= std::log(std::max(y[labels[n]], least));
  }
  *call.Output(1, 1) = scale * loss;
}

template void RunLrn(const Call<float>&);
template void RunLrn(const Call<double>&);
template void RunSoftmaxLoss(const Call<float>&);
template void RunSoftmaxLoss(const Call<double>&);

}  // namespace spillway::cpu
