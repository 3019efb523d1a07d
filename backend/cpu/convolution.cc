// Convolution, as im2col and a matrix product per sample and group, and the fully connected layer.

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>

#include "backend/cpu/operands.h"
#include "traces/base/error.h"

namespace spillway::cpu {
namespace {

template <typename Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename Scalar>
using View = Eigen::Map<Matrix<Scalar>>;
template <typename Scalar>
using ConstView = Eigen::Map<const Matrix<Scalar>>;

struct Shape {
  int64_t in_channels, in_height, in_width, out_channels, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, groups;

  explicit Shape(const Op& op)
      : in_channels(IntOf(op, "in_channels")),
        in_height(IntOf(op, "in_height")),
        in_width(IntOf(op, "in_width")),
        out_channels(IntOf(op, "out_channels")),
        out_height(IntOf(op, "out_height")),
        out_width(IntOf(op, "out_width")),
        kernel_h(IntOf(op, "kernel_h", 1)),
        kernel_w(IntOf(op, "kernel_w", 1)),
        stride_h(IntOf(op, "stride_h", 1)),
        stride_w(IntOf(op, "stride_w", 1)),
        pad_h(IntOf(op, "pad_h")),
        pad_w(IntOf(op, "pad_w")),
        groups(IntOf(op, "groups", 1)) {
    if (in_channels % groups != 0 || out_channels % groups != 0) {
      throw InputError(fmt::format("op '{}' (conv2d): {} groups do not divide {} and {} channels",
                                   op.name, groups, in_channels, out_channels));
    }
    static_cast<void>(Product(op, {depth_channels(), kernel_h, kernel_w, out_height, out_width}));
  }

  int64_t depth_channels() const { return in_channels / groups; }
  int64_t depth() const { return depth_channels() * kernel_h * kernel_w; }
  int64_t out_plane() const { return out_height * out_width; }
  // Whether the columns of im2col are the input itself.
  bool IsPlain() const {
    return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 &&
           pad_w == 0 && out_height == in_height && out_width == in_width;
  }

  // Calls visit(element of the columns, element of the group's input, or -1 in the padding) for
  // every element of the depth() x out_plane() matrix of columns.
  template <typename Visitor>
  void ForEachColumn(const Visitor& visit) const {
    int64_t to = 0;
    for (int64_t c = 0; c < depth_channels(); ++c) {
      for (int64_t r = 0; r < kernel_h; ++r) {
        for (int64_t s = 0; s < kernel_w; ++s) {
          for (int64_t p = 0; p < out_height; ++p) {
            const int64_t h = p * stride_h - pad_h + r;
            for (int64_t q = 0; q < out_width; ++q) {
              const int64_t w = q * stride_w - pad_w + s;
              const bool inside = h >= 0 && h < in_height && w >= 0 && w < in_width;
              visit(to++, inside ? (c * in_height + h) * in_width + w : -1);
            }
          }
        }
      }
    }
  }
};

// Where the gradient of parameter `input` goes: outputs[output], overwritten, or with a fused
// update the parameter itself.
template <typename Scalar>
void StoreParameterGradient(const Call<Scalar>& call, size_t input, size_t output,
                            const Matrix<Scalar>& gradient) {
  const int64_t count = gradient.size();
  Scalar* out = call.Output(output, count);
  if (!Flag(call.op, "fused_update")) {
    std::copy_n(gradient.data(), count, out);
    return;
  }
  const Scalar* parameter = call.Input(input, count);
  const auto learning_rate = static_cast<Scalar>(NumberOf(call.op, "learning_rate"));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = parameter[i] - learning_rate * gradient.data()[i];
  }
}

// The sums of dy over samples and planes.
template <typename Scalar>
Matrix<Scalar> BiasGradient(const Scalar* dy, int64_t batch, int64_t channels, int64_t plane) {
  Matrix<Scalar> gradient = Matrix<Scalar>::Zero(1, channels);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      const Scalar* row = dy + (n * channels + c) * plane;
      Scalar sum = 0;
      for (int64_t i = 0; i < plane; ++i) sum += row[i];
      gradient(0, c) += sum;
    }
  }
  return gradient;
}

template <typename Scalar>
void AddBias(Scalar* y, const Scalar* bias, int64_t batch, int64_t channels, int64_t plane) {
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < plane; ++i) *y++ += bias[c];
    }
  }
}

}  // namespace

template <typename Scalar>
void RunConv2d(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Shape s(op);
  const bool forward = op.phase == Phase::kForward;
  const bool needs_dx = !forward && Flag(op, "needs_dx");
  const bool plain = s.IsPlain();
  const int64_t in_group = Product(op, {s.depth_channels(), s.in_height, s.in_width});
  const int64_t out_channels = s.out_channels / s.groups;
  const int64_t out_group = Product(op, {out_channels, s.out_plane()});
  const int64_t weight_group = Product(op, {out_channels, s.depth()});
  const int64_t in = Product(op, {op.batch, s.groups, in_group});
  const int64_t out = Product(op, {op.batch, s.groups, out_group});

  const Scalar* x = call.Input(0, in);
  const Scalar* weight = call.Input(1, Product(op, {s.groups, weight_group}));
  const Scalar* dy = forward ? nullptr : call.Input(2, out);
  Scalar* y = forward ? call.Output(0, out) : nullptr;
  Scalar* dx = needs_dx ? call.Output(0, in) : nullptr;
  if (needs_dx && !Accumulates(op, 0)) std::fill_n(dx, in, Scalar(0));
  Matrix<Scalar> columns(plain ? 0 : s.depth(), plain ? 0 : s.out_plane());
  Matrix<Scalar> dcolumns;
  Matrix<Scalar> dweight =
      Matrix<Scalar>::Zero(forward ? 0 : s.out_channels, forward ? 0 : s.depth());

  for (int64_t n = 0; n < op.batch; ++n) {
    for (int64_t g = 0; g < s.groups; ++g) {
      const Scalar* x_group = x + (n * s.groups + g) * in_group;
      const int64_t out_offset = (n * s.groups + g) * out_group;
      if (!plain) {
        s.ForEachColumn([&](int64_t to, int64_t from) {
          columns.data()[to] = from < 0 ? Scalar(0) : x_group[from];
        });
      }
      const ConstView<Scalar> x_columns(plain ? x_group : columns.data(), s.depth(), s.out_plane());
      const ConstView<Scalar> w(weight + g * weight_group, out_channels, s.depth());
      if (forward) {
        View<Scalar>(y + out_offset, out_channels, s.out_plane()).noalias() = w * x_columns;
        continue;
      }
      const ConstView<Scalar> dy_group(dy + out_offset, out_channels, s.out_plane());
      dweight.middleRows(g * out_channels, out_channels).noalias() +=
          dy_group * x_columns.transpose();
      if (!needs_dx) continue;
      dcolumns.noalias() = w.transpose() * dy_group;
      Scalar* dx_group = dx + (n * s.groups + g) * in_group;
      if (plain) {
        for (int64_t i = 0; i < in_group; ++i) dx_group[i] += dcolumns.data()[i];
      } else {
        s.ForEachColumn([&](int64_t from, int64_t to) {
          if (to >= 0) dx_group[to] += dcolumns.data()[from];
        });
      }
    }
  }
  const bool bias = Flag(op, "bias");
  if (forward) {
    if (bias) {
      AddBias(y, call.Input(2, s.out_channels), op.batch, s.out_channels, s.out_plane());
    }
    return;
  }
  const size_t gradient = needs_dx ? 1 : 0;
  StoreParameterGradient(call, 1, gradient, dweight);
  if (bias) {
    StoreParameterGradient(call, 3, gradient + 1,
                           BiasGradient(dy, op.batch, s.out_channels, s.out_plane()));
  }
}

template <typename Scalar>
void RunLinear(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t in = IntOf(op, "in_features");
  const int64_t out = IntOf(op, "out_features");
  const int64_t in_total = Product(op, {op.batch, in});
  const int64_t out_total = Product(op, {op.batch, out});
  const bool bias = Flag(op, "bias");
  const ConstView<Scalar> x(call.Input(0, in_total), op.batch, in);
  const ConstView<Scalar> weight(call.Input(1, Product(op, {out, in})), out, in);
  if (op.phase == Phase::kForward) {
    Scalar* y = call.Output(0, out_total);
    View<Scalar>(y, op.batch, out).noalias() = x * weight.transpose();
    if (bias) AddBias(y, call.Input(2, out), op.batch, out, 1);
    return;
  }
  const ConstView<Scalar> dy(call.Input(2, out_total), op.batch, out);
  const bool needs_dx = Flag(op, "needs_dx");
  if (needs_dx) {
    View<Scalar> dx(call.Output(0, in_total), op.batch, in);
    if (Accumulates(op, 0)) {
      dx.noalias() += dy * weight;
    } else {
      dx.noalias() = dy * weight;
    }
  }
  const size_t gradient = needs_dx ? 1 : 0;
  const Matrix<Scalar> dweight = dy.transpose() * x;
  StoreParameterGradient(call, 1, gradient, dweight);
  if (bias) {
    StoreParameterGradient(call, 3, gradient + 1, BiasGradient(dy.data(), op.batch, out, 1));
  }
}

template void RunConv2d(const Call<float>&);
template void RunConv2d(const Call<double>&);
template void RunLinear(const Call<float>&);
template void RunLinear(const Call<double>&);

}  // namespace spillway::cpu
