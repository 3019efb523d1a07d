// Naive double-precision implementations of the ops for tests: obvious, slow, on the CPU.
//
// Arrays are dense NCHW. The code here does not depend on kernels, slots or devices.

#ifndef SPILLWAY_TESTS_TESTING_REFERENCE_H_
#define SPILLWAY_TESTS_TESTING_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

namespace spillway::testing::reference {

using Array = std::vector<double>;

struct Conv {
  int batch, in_channels, in_height, in_width, out_channels;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, groups;

  int out_height() const { return (in_height + 2 * pad_h - kernel_h) / stride_h + 1; }
  int out_width() const { return (in_width + 2 * pad_w - kernel_w) / stride_w + 1; }
  int in_size() const { return in_channels * in_height * in_width; }
  int out_size() const { return out_channels * out_height() * out_width(); }
  int weight_size() const { return out_channels * in_channels / groups * kernel_h * kernel_w; }

  // Calls visit(x index, weight index, y index) for each multiply-add.
  template <typename Visitor>
  void ForEach(const Visitor& visit) const {
    const int group_in = in_channels / groups;
    const int group_out = out_channels / groups;
    for (int n = 0; n < batch; ++n)
      for (int k = 0; k < out_channels; ++k)
        for (int c = 0; c < group_in; ++c)
          for (int p = 0; p < out_height(); ++p)
            for (int q = 0; q < out_width(); ++q)
              for (int r = 0; r < kernel_h; ++r)
                for (int s = 0; s < kernel_w; ++s) {
                  const int h = p * stride_h - pad_h + r;
                  const int w = q * stride_w - pad_w + s;
                  if (h < 0 || h >= in_height || w < 0 || w >= in_width) continue;
                  const int channel = k / group_out * group_in + c;
                  visit(((n * in_channels + channel) * in_height + h) * in_width + w,
                        ((k * group_in + c) * kernel_h + r) * kernel_w + s,
                        ((n * out_channels + k) * out_height() + p) * out_width() + q);
                }
  }
};

// Prints a convolution in test names and failures.
inline void PrintTo(const Conv& c, std::ostream* out) {
  *out << "batch " << c.batch << " in " << c.in_channels << "x" << c.in_height << "x" << c.in_width
       << " out " << c.out_channels << " kernel " << c.kernel_h << "x" << c.kernel_w;
}

// Adds bias[c] to every element of channel c.
inline void AddBias(Array& y, const Array& bias, int plane) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i / plane % bias.size()];
}

inline Array BiasGradient(const Array& dy, int channels, int plane) {
  Array db(channels);
  for (size_t i = 0; i < dy.size(); ++i) db[i / plane % channels] += dy[i];
  return db;
}

struct Pool {
  int planes, in_height, in_width, out_height, out_width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;

  // Calls visit(x index, y index) for every input of every window, in row-major order.
  template <typename Visitor>
  void ForEach(const Visitor& visit) const {
    for (int c = 0; c < planes; ++c)
      for (int p = 0; p < out_height; ++p)
        for (int q = 0; q < out_width; ++q)
          for (int r = 0; r < kernel_h; ++r)
            for (int s = 0; s < kernel_w; ++s) {
              const int h = p * stride_h - pad_h + r;
              const int w = q * stride_w - pad_w + s;
              if (h < 0 || h >= in_height || w < 0 || w >= in_width) continue;
              visit((c * in_height + h) * in_width + w, (c * out_height + p) * out_width + q);
            }
  }
  size_t in_size() const { return static_cast<size_t>(planes) * in_height * in_width; }
  size_t out_size() const { return static_cast<size_t>(planes) * out_height * out_width; }

  // Returns how many elements of the window of output y lie in the padded input.
  double Divisor(int y) const {
    const int p = y / out_width % out_height;
    const int q = y % out_width;
    int count = 0;
    for (int r = 0; r < kernel_h; ++r)
      for (int s = 0; s < kernel_w; ++s)
        if (p * stride_h - pad_h + r < in_height + pad_h &&
            q * stride_w - pad_w + s < in_width + pad_w)
          ++count;
    return count;
  }

  // Returns, for each output, the index of its first maximum.
  std::vector<int> Winners(const Array& x) const {
    std::vector<int> winners(out_size(), -1);
    ForEach([&](int from, int to) {
      if (winners[to] < 0 || x[from] > x[winners[to]]) winners[to] = from;
    });
    return winners;
  }
};

struct Lrn {
  int batch, channels, plane, size;
  double alpha, beta, k;

  // Calls visit(index, neighbour's index) for each neighbour of each element, the element included.
  template <typename Visitor>
  void ForEach(const Visitor& visit) const {
    for (int n = 0; n < batch; ++n)
      for (int c = 0; c < channels; ++c)
        for (int d = std::max(0, c - size / 2); d <= std::min(channels - 1, c + size / 2); ++d)
          for (int i = 0; i < plane; ++i)
            visit((n * channels + c) * plane + i, (n * channels + d) * plane + i);
  }
  Array Scale(const Array& x) const {
    Array scale(x.size(), k);
    ForEach([&](int i, int j) { scale[i] += alpha / size * x[j] * x[j]; });
    return scale;
  }
  Array Forward(const Array& x) const {
    const Array scale = Scale(x);
    Array y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * std::pow(scale[i], -beta);
    return y;
  }
  Array Backward(const Array& x, const Array& dy) const {
    const Array scale = Scale(x);
    const Array y = Forward(x);
    Array dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * std::pow(scale[i], -beta);
    ForEach(
        [&](int i, int j) { dx[j] -= 2 * alpha * beta / size * x[j] * dy[i] * y[i] / scale[i]; });
    return dx;
  }
};

struct BatchNorm {
  int batch, channels, plane;
  double epsilon, momentum;

  int channel(size_t i) const { return static_cast<int>(i) / plane % channels; }
  // Returns the mean of the values of each channel over the samples and the plane.
  Array Mean(const Array& values) const {
    Array mean(channels);
    for (size_t i = 0; i < values.size(); ++i) mean[channel(i)] += values[i] / (batch * plane);
    return mean;
  }
  Array Variance(const Array& x) const {  // biased
    const Array mean = Mean(x);
    Array squares(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      squares[i] = (x[i] - mean[channel(i)]) * (x[i] - mean[channel(i)]);
    }
    return Mean(squares);
  }
  Array InvStd(const Array& variance) const {
    Array result(channels);
    for (int c = 0; c < channels; ++c) result[c] = 1 / std::sqrt(variance[c] + epsilon);
    return result;
  }
  Array Normal(const Array& x, const Array& mean, const Array& variance) const {
    const Array inv_std = InvStd(variance);
    Array normal(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      normal[i] = (x[i] - mean[channel(i)]) * inv_std[channel(i)];
    }
    return normal;
  }
  Array Forward(const Array& x, const Array& mean, const Array& variance, const Array& weight,
                const Array& bias) const {
    Array y = Normal(x, mean, variance);
    for (size_t i = 0; i < y.size(); ++i) y[i] = weight[channel(i)] * y[i] + bias[channel(i)];
    return y;
  }
  struct Gradients {
    Array dx, dweight, dbias;
  };
  Gradients Backward(const Array& x, const Array& weight, const Array& dy) const {
    const Array variance = Variance(x), inv_std = InvStd(variance);
    const Array normal = Normal(x, Mean(x), variance);
    Gradients result{Array(x.size()), Array(channels), Array(channels)};
    for (size_t i = 0; i < x.size(); ++i) {
      result.dweight[channel(i)] += dy[i] * normal[i];
      result.dbias[channel(i)] += dy[i];
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const int c = channel(i);
      const double mean = (result.dbias[c] + normal[i] * result.dweight[c]) / (batch * plane);
      result.dx[i] = weight[c] * inv_std[c] * (dy[i] - mean);
    }
    return result;
  }
  // Returns the running statistics after one more batch with the given statistics.
  Array Move(const Array& running, const Array& batch_statistic, double factor) const {
    Array moved(channels);
    for (int c = 0; c < channels; ++c) {
      moved[c] = (1 - momentum) * running[c] + momentum * factor * batch_statistic[c];
    }
    return moved;
  }
  double Unbiased() const {
    const double n = batch * plane;
    return n > 1 ? n / (n - 1) : 1;
  }
};

inline Array Softmax(const Array& x, int classes) {
  Array y(x.size());
  for (size_t row = 0; row < x.size(); row += classes) {
    double sum = 0;
    for (int i = 0; i < classes; ++i) sum += std::exp(x[row + i]);
    for (int i = 0; i < classes; ++i) y[row + i] = std::exp(x[row + i]) / sum;
  }
  return y;
}

}  // namespace spillway::testing::reference

#endif  // SPILLWAY_TESTS_TESTING_REFERENCE_H_
