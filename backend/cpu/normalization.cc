// Local response and batch normalisation, and softmax with its cross-entropy loss.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/operands.h"
#include "traces/base/error.h"

namespace spillway::cpu {
namespace {

// The geometry of a batch normalisation. The values of one channel fill `batch` planes of `plane`
// elements.
struct Channels {
  int64_t batch, channels, plane;

  explicit Channels(const Op& op)
      : batch(op.batch),
        channels(op.IntAttribute("channels", 0)),
        plane(Product(op, {op.IntAttribute("height", 0), op.IntAttribute("width", 0)})) {}

  int64_t count() const { return batch * plane; }  // elements of one channel

  // Calls visit(element) for the elements of channel c.
  template <typename Visitor>
  void ForEach(int64_t c, const Visitor& visit) const {
    for (int64_t n = 0; n < batch; ++n) {
      const int64_t first = (n * channels + c) * plane;
      for (int64_t i = first; i < first + plane; ++i) visit(i);
    }
  }
};

// Computes y = weight * (x - mean) * inv_std + bias. Sums are double for both scalar types.
template <typename Scalar>
void BatchNormForward(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Channels shape(op);
  const int64_t total = Product(op, {shape.channels, shape.batch, shape.plane});
  const bool training = op.Flag("training");
  const double epsilon = op.NumberAttribute("epsilon");
  const Scalar* x = call.Input(kX, total);
  const Scalar* weight = call.Input(kWeight, shape.channels);
  const Scalar* bias = call.Input(kBias, shape.channels);
  const Scalar* running_mean = training ? nullptr : call.Input(kRunningMean, shape.channels);
  const Scalar* running_var = training ? nullptr : call.Input(kRunningVar, shape.channels);
  Scalar* y = call.Output(kY, total);
  Scalar* saved_mean = training ? call.Output(kMean, shape.channels) : nullptr;
  Scalar* saved_inv_std = training ? call.Output(kInvStd, shape.channels) : nullptr;
  const auto count = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    double mean = 0, variance = 0;
    if (training) {
      shape.ForEach(c, [&](int64_t i) { mean += static_cast<double>(x[i]); });
      mean /= count;
      shape.ForEach(c, [&](int64_t i) {
        const double deviation = static_cast<double>(x[i]) - mean;
        variance += deviation * deviation;
      });
      variance /= count;
    } else {
      mean = static_cast<double>(running_mean[c]);
      variance = static_cast<double>(running_var[c]);
    }
    const double inv_std = 1 / std::sqrt(variance + epsilon);
    if (training) {
      saved_mean[c] = static_cast<Scalar>(mean);
      saved_inv_std[c] = static_cast<Scalar>(inv_std);
    }
    const auto centre = static_cast<Scalar>(mean);
    const auto scale = static_cast<Scalar>(static_cast<double>(weight[c]) * inv_std);
    shape.ForEach(c, [&](int64_t i) { y[i] = scale * (x[i] - centre) + bias[c]; });
  }
}

// Computes dx = weight * inv_std * (dy - mean(dy) - x^ * mean(dy * x^)), where x^ = (x - mean) *
// inv_std and each mean() is taken over the channel.
template <typename Scalar>
void BatchNormBackward(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Channels shape(op);
  const int64_t total = Product(op, {shape.channels, shape.batch, shape.plane});
  const bool needs_dx = op.Flag("needs_dx");
  const bool fused = op.Flag("fused_update");
  const double rate = fused ? op.NumberAttribute("learning_rate") : 0;
  const double epsilon = op.NumberAttribute("epsilon");
  const double momentum = op.NumberAttribute("momentum");
  const Scalar* x = call.Input(kX, total);
  const Scalar* weight = call.Input(kWeight, shape.channels);
  const Scalar* dy = call.Input(kDy, total);
  const Scalar* mean = call.Input(kMean, shape.channels);
  const Scalar* inv_std = call.Input(kInvStd, shape.channels);
  const Scalar* old_mean = call.Input(kRunningMean, shape.channels);
  const Scalar* old_var = call.Input(kRunningVar, shape.channels);
  const Scalar* bias = fused ? call.Input(kBias, shape.channels) : nullptr;
  Scalar* dx = needs_dx ? call.Output(kDx, total) : nullptr;
  Scalar* dweight = call.Output(kDweight, shape.channels);
  Scalar* dbias = call.Output(kDbias, shape.channels);
  Scalar* running_mean = call.Output(kRunningMean, shape.channels);
  Scalar* running_var = call.Output(kRunningVar, shape.channels);
  const bool accumulate = needs_dx && op.Accumulates(0);
  const bool adds = op.Accumulates(OutputIndex(op, kDweight).value());
  const auto count = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    const auto normal = [&](int64_t i) {
      return static_cast<double>(x[i] - mean[c]) * static_cast<double>(inv_std[c]);
    };
    double sum = 0, product = 0;
    shape.ForEach(c, [&](int64_t i) {
      sum += static_cast<double>(dy[i]);
      product += static_cast<double>(dy[i]) * normal(i);
    });
    if (needs_dx) {
      const double scale = static_cast<double>(weight[c]) * static_cast<double>(inv_std[c]);
      shape.ForEach(c, [&](int64_t i) {
        const double gradient =
            scale * (static_cast<double>(dy[i]) - (sum + normal(i) * product) / count);
        Store(dx, i, static_cast<Scalar>(gradient), accumulate);
      });
    }
    // With a fused update, the outputs `dweight` and `dbias` are the updated parameters.
    const double old_weight = fused ? static_cast<double>(weight[c]) : 0;
    const double old_bias = fused ? static_cast<double>(bias[c]) : 0;
    Store(dweight, c, static_cast<Scalar>(fused ? old_weight - rate * product : product), adds);
    Store(dbias, c, static_cast<Scalar>(fused ? old_bias - rate * sum : sum), adds);

    const double deviation = 1 / static_cast<double>(inv_std[c]);
    const double variance =
        (deviation * deviation - epsilon) * (count > 1 ? count / (count - 1) : 1);
    const auto move = [&](Scalar old, double target) {
      return static_cast<Scalar>(static_cast<double>(old) +
                                 momentum * (target - static_cast<double>(old)));
    };
    running_mean[c] = move(old_mean[c], static_cast<double>(mean[c]));
    running_var[c] = move(old_var[c], variance);
  }
}

template <typename Scalar>
void RunBatchNorm(const Call<Scalar>& call) {
  if (call.op.phase == Phase::kForward) return BatchNormForward(call);
  BatchNormBackward(call);
}

// Computes y = x * s^-beta with s = k + alpha / size * (the sum of x^2 over the window of
// channels).
template <typename Scalar>
void RunLrn(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t channels = op.IntAttribute("channels", 0);
  const int64_t plane = Product(op, {op.IntAttribute("height", 0), op.IntAttribute("width", 0)});
  const int64_t size = op.IntAttribute("size", 1);
  const int64_t before = (size - 1) / 2;  // channels of the window before its centre
  const int64_t after = size - 1 - before;
  const auto share = static_cast<Scalar>(op.NumberAttribute("alpha") / static_cast<double>(size));
  const auto beta = static_cast<Scalar>(op.NumberAttribute("beta"));
  const auto k = static_cast<Scalar>(op.NumberAttribute("k"));
  const int64_t elements = Product(op, {channels, plane});
  const int64_t total = Product(op, {op.batch, elements});
  const bool forward = op.phase == Phase::kForward;
  const Scalar* x = call.Input(kX, total);
  const Scalar* y = forward ? nullptr : call.Input(kY, total);
  const Scalar* dy = forward ? nullptr : call.Input(kDy, total);
  Scalar* out = call.Output(forward ? kY : kDx, total);
  const bool accumulate = !forward && op.Accumulates(0);

  // Calls visit(i, j) for every element i of a sample and every channel d from c - low to c + high,
  // where c is the channel of i. j is the element of channel d at the place of i.
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
  const int64_t classes = op.IntAttribute("elements", 1);
  const int64_t rows = Product(op, {op.batch, PositionsOf(op)});
  const int64_t total = Product(op, {rows, classes});
  const bool forward = op.phase == Phase::kForward;
  const Scalar* in = call.Input(forward ? kX : kY, total);
  const int32_t* labels = call.Integers(kLabels, rows);
  Scalar* out = call.Output(forward ? kY : kDx, total);
  for (int64_t n = 0; n < rows; ++n) {
    if (labels[n] < 0 || labels[n] >= classes) {
      throw InputError(fmt::format("op '{}' (softmax_loss): label {} is {}, expected 0 to {}",
                                   op.name, n, labels[n], classes - 1));
    }
  }
  const bool is_share = op.FindAttribute("mean_over").has_value();
  const auto scale = 1 / static_cast<Scalar>(is_share ? op.IntAttribute("mean_over", rows) : rows);
  if (!forward) {
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t i = n * classes; i < (n + 1) * classes; ++i) {
        out[i] = scale * (in[i] - Scalar(i - n * classes == labels[n] ? 1 : 0));
      }
    }
    return;
  }
  Scalar loss = 0;
  for (int64_t n = 0; n < rows; ++n) {
    const Scalar* x = in + n * classes;
    Scalar* y = out + n * classes;
    const Scalar largest = *std::max_element(x, x + classes);
    Scalar sum = 0;
    for (int64_t i = 0; i < classes; ++i) {
      y[i] = std::exp(x[i] - largest);
      sum += y[i];
    }
    for (int64_t i = 0; i < classes; ++i) y[i] /= sum;
    // The clamp is in float's range for both scalar types. std::max returns a NaN in its first
    // argument.
    const auto least = static_cast<Scalar>(std::numeric_limits<float>::min());
    loss -= std::log(std::max(y[labels[n]], least));
  }
  *call.Output(kLoss, 1) = scale * loss;
}

}  // namespace

template <typename Scalar>
bool RunNormalization(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kLrn:
      return RunLrn(call), true;
    case OpType::kBatchNorm:
      return RunBatchNorm(call), true;
    case OpType::kSoftmaxLoss:
      return RunSoftmaxLoss(call), true;
    default:
      return false;
  }
}

template bool RunNormalization(const Call<float>&);
template bool RunNormalization(const Call<double>&);

}  // namespace spillway::cpu
