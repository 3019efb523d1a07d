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
      : in_channels(op.IntAttribute("in_channels", 0)),
        in_height(op.IntAttribute("in_height", 0)),
        in_width(op.IntAttribute("in_width", 0)),
        out_channels(op.IntAttribute("out_channels", 0)),
        out_height(op.IntAttribute("out_height", 0)),
        out_width(op.IntAttribute("out_width", 0)),
        kernel_h(op.IntAttribute("kernel_h", 1)),
        kernel_w(op.IntAttribute("kernel_w", 1)),
        stride_h(op.IntAttribute("stride_h", 1)),
        stride_w(op.IntAttribute("stride_w", 1)),
        pad_h(op.IntAttribute("pad_h", 0)),
        pad_w(op.IntAttribute("pad_w", 0)),
        groups(op.IntAttribute("groups", 1)) {
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

// Overwrites the gradient of a parameter, or with a fused update changes the parameter itself.
template <typename Scalar>
void StoreParameterGradient(const Call<Scalar>& call, Role role, const Matrix<Scalar>& gradient) {
  const int64_t count = gradient.size();
  Scalar* out = call.Output(GradientOf(role), count);
  if (!call.op.Flag("fused_update")) {
    std::copy_n(gradient.data(), count, out);
    return;
  }
  const Scalar* parameter = call.Input(role, count);
  const auto learning_rate = static_cast<Scalar>(call.op.NumberAttribute("learning_rate"));
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

template <typename Scalar>
void RunConv2d(const Call<Scalar>& call) {
  const Op& op = call.op;
  const Shape s(op);
  const bool forward = op.phase == Phase::kForward;
  const bool needs_dx = !forward && op.Flag("needs_dx");
  const bool plain = s.IsPlain();
  const int64_t in_group = Product(op, {s.depth_channels(), s.in_height, s.in_width});
  const int64_t out_channels = s.out_channels / s.groups;
  const int64_t out_group = Product(op, {out_channels, s.out_plane()});
  const int64_t weight_group = Product(op, {out_channels, s.depth()});
  const int64_t in = Product(op, {op.batch, s.groups, in_group});
  const int64_t out = Product(op, {op.batch, s.groups, out_group});

  const Scalar* x = call.Input(kX, in);
  const Scalar* weight = call.Input(kWeight, Product(op, {s.groups, weight_group}));
  const Scalar* dy = forward ? nullptr : call.Input(kDy, out);
  Scalar* y = forward ? call.Output(kY, out) : nullptr;
  Scalar* dx = needs_dx ? call.Output(kDx, in) : nullptr;
  if (needs_dx && !op.Accumulates(0)) std::fill_n(dx, in, Scalar(0));
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
  const bool bias = op.Flag("bias");
  if (forward) {
    if (bias) {
      AddBias(y, call.Input(kBias, s.out_channels), op.batch, s.out_channels, s.out_plane());
    }
    return;
  }
  StoreParameterGradient(call, kWeight, dweight);
  if (bias) {
    StoreParameterGradient(call, kBias, BiasGradient(dy, op.batch, s.out_channels, s.out_plane()));
  }
}

template <typename Scalar>
void RunLinear(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t in = op.IntAttribute("in_features", 0);
  const int64_t out = op.IntAttribute("out_features", 0);
  const int64_t in_total = Product(op, {op.batch, in});
  const int64_t out_total = Product(op, {op.batch, out});
  const bool bias = op.Flag("bias");
  const ConstView<Scalar> x(call.Input(kX, in_total), op.batch, in);
  const ConstView<Scalar> weight(call.Input(kWeight, Product(op, {out, in})), out, in);
  if (op.phase == Phase::kForward) {
    Scalar* y = call.Output(kY, out_total);
    View<Scalar>(y, op.batch, out).noalias() = x * weight.transpose();
    if (bias) AddBias(y, call.Input(kBias, out), op.batch, out, 1);
    return;
  }
  const ConstView<Scalar> dy(call.Input(kDy, out_total), op.batch, out);
  if (op.Flag("needs_dx")) {
    View<Scalar> dx(call.Output(kDx, in_total), op.batch, in);
    if (op.Accumulates(0)) {
      dx.noalias() += dy * weight;
    } else {
      dx.noalias() = dy * weight;
    }
  }
  const Matrix<Scalar> dweight = dy.transpose() * x;
  StoreParameterGradient(call, kWeight, dweight);
  if (bias) StoreParameterGradient(call, kBias, BiasGradient(dy.data(), op.batch, out, 1));
}

}  // namespace

template <typename Scalar>
bool RunProduct(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kConv2d:
      return RunConv2d(call), true;
    case OpType::kLinear:
      return RunLinear(call), true;
    default:
      return false;
  }
}

template bool RunProduct(const Call<float>&);
template bool RunProduct(const Call<double>&);

}  // namespace spillway::cpu
