// Convolution, as im2col followed by one matrix product per sample and group, and the fully
// connected layer.

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>

#include "backend/cpu/operands.h"
#include "backend/cpu/ordered_product.h"
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
  // Returns true iff the columns of im2col are the input itself.
  bool IsPlain() const {
    return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 &&
           pad_w == 0 && out_height == in_height && out_width == in_width;
  }

  // Calls visit(i, j) for every element i of the depth() x out_plane() matrix of columns. j is the
  // element of the group's input that i holds, or -1 if i lies in the padding.
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

// Returns the sums of dy over samples and planes, one per channel.
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

// A convolution that proceeds sample by sample, so that any division of the batch gives the same
// bits.
template <typename Scalar>
class Convolution {
 public:
  explicit Convolution(const Call<Scalar>& call)
      : call_(call),
        s_(call.op),
        in_group_(Product(call.op, {s_.depth_channels(), s_.in_height, s_.in_width})),
        out_channels_(s_.out_channels / s_.groups),
        out_group_(Product(call.op, {out_channels_, s_.out_plane()})),
        weight_group_(Product(call.op, {out_channels_, s_.depth()})),
        in_(Product(call.op, {call.op.batch, s_.groups, in_group_})),
        out_(Product(call.op, {call.op.batch, s_.groups, out_group_})),
        x_(call.Input(kX, in_)),
        weight_(call.Input(kWeight, Product(call.op, {s_.groups, weight_group_}))) {}

  void Run() {
    if (call_.op.phase == Phase::kForward) {
      y_ = call_.Output(kY, out_);
      if (!call_.op.Accumulates(0)) std::fill_n(y_, out_, Scalar(0));
      ForEachPart("fwd", [this](int64_t from, int64_t to) { Forward(from, to); });
      if (call_.op.Flag("bias")) {
        AddBias(y_, call_.Input(kBias, s_.out_channels), call_.op.batch, s_.out_channels,
                s_.out_plane());
      }
      return;
    }
    dy_ = call_.Input(kDy, out_);
    if (call_.op.Flag("needs_dx")) {
      dx_ = call_.Output(kDx, in_);
      if (!call_.op.Accumulates(0)) std::fill_n(dx_, in_, Scalar(0));
      ForEachPart("bwd_data", [this](int64_t from, int64_t to) { BackwardData(from, to); });
    }
    dweight_.resize(s_.out_channels, s_.depth());
    ForEachPart("bwd_filter", [this](int64_t from, int64_t to) {
      if (from == 0) dweight_.setZero();
      BackwardFilter(from, to);
    });
    StoreParameterGradient(call_, kWeight, dweight_.data(), dweight_.size());
    if (call_.op.Flag("bias")) {
      const Matrix<Scalar> dbias =
          BiasGradient(dy_, call_.op.batch, s_.out_channels, s_.out_plane());
      StoreParameterGradient(call_, kBias, dbias.data(), dbias.size());
    }
  }

 private:
  // Calls run(from, to) with the samples [from, to) of each part of the slot, or once with the
  // whole batch if the call lists no runs.
  template <typename RunPart>
  void ForEachPart(std::string_view slot, RunPart run) {
    if (call_.runs.empty()) run(0, call_.op.batch);
    int64_t from = 0;
    for (const KernelRun& part : call_.runs) {
      if (call_.op.slots[part.slot].name != slot) continue;
      run(from, from + part.batch);
      from += part.batch;
    }
  }

  // Calls use(group, in, out) for each group of the samples [from, to). `in` and `out` are the
  // offsets of the group's inputs and outputs, in elements.
  template <typename Use>
  void ForEachGroup(int64_t from, int64_t to, Use use) const {
    for (int64_t n = from; n < to; ++n) {
      for (int64_t g = 0; g < s_.groups; ++g) {
        use(g, (n * s_.groups + g) * in_group_, (n * s_.groups + g) * out_group_);
      }
    }
  }

  // Returns the im2col columns of the group's input that starts at element `in`.
  ConstView<Scalar> ColumnsOf(int64_t in) {
    const Scalar* x = x_ + in;
    if (s_.IsPlain()) return {x, s_.depth(), s_.out_plane()};
    columns_.resize(s_.depth(), s_.out_plane());
    s_.ForEachColumn(
        [&](int64_t to, int64_t from) { columns_.data()[to] = from < 0 ? Scalar(0) : x[from]; });
    return {columns_.data(), s_.depth(), s_.out_plane()};
  }

  ConstView<Scalar> WeightOf(int64_t group) const {
    return {weight_ + group * weight_group_, out_channels_, s_.depth()};
  }
  ConstView<Scalar> DyOf(int64_t out) const { return {dy_ + out, out_channels_, s_.out_plane()}; }

  void Forward(int64_t from, int64_t to) {
    ForEachGroup(from, to, [&](int64_t g, int64_t in, int64_t out) {
      product_.Add(WeightOf(g).data(), ColumnsOf(in).data(), y_ + out, out_channels_,
                   s_.out_plane(), s_.depth());
    });
  }

  void BackwardData(int64_t from, int64_t to) {
    ForEachGroup(from, to, [&](int64_t g, int64_t in, int64_t out) {
      columns_.noalias() = WeightOf(g).transpose() * DyOf(out);
      Scalar* dx = dx_ + in;
      if (s_.IsPlain()) {
        for (int64_t i = 0; i < in_group_; ++i) dx[i] += columns_.data()[i];
      } else {
        s_.ForEachColumn([&](int64_t column, int64_t pixel) {
          if (pixel >= 0) dx[pixel] += columns_.data()[column];
        });
      }
    });
  }

  void BackwardFilter(int64_t from, int64_t to) {
    ForEachGroup(from, to, [&](int64_t g, int64_t in, int64_t out) {
      dweight_.middleRows(g * out_channels_, out_channels_).noalias() +=
          DyOf(out) * ColumnsOf(in).transpose();
    });
  }

  const Call<Scalar>& call_;
  const Shape s_;
  const int64_t in_group_, out_channels_, out_group_, weight_group_;  // the sizes of one group
  const int64_t in_, out_;
  const Scalar* const x_;
  const Scalar* const weight_;
  const Scalar* dy_ = nullptr;
  Scalar* y_ = nullptr;
  Scalar* dx_ = nullptr;
  Matrix<Scalar> columns_;
  Matrix<Scalar> dweight_;
  OrderedProduct<Scalar> product_;
};

template <typename Scalar>
void RunLinear(const Call<Scalar>& call) {
  const Op& op = call.op;
  const int64_t in = op.IntAttribute("in_features", 0);
  const int64_t out = op.IntAttribute("out_features", 0);
  const int64_t rows = Product(op, {op.batch, PositionsOf(op)});
  const int64_t in_total = Product(op, {rows, in});
  const int64_t out_total = Product(op, {rows, out});
  const bool bias = op.Flag("bias");
  const ConstView<Scalar> x(call.Input(kX, in_total), rows, in);
  const ConstView<Scalar> weight(call.Input(kWeight, Product(op, {out, in})), out, in);
  if (op.phase == Phase::kForward) {
    Scalar* y = call.Output(kY, out_total);
    OrderedDots(x.data(), weight.data(), y, rows, out, in);
    if (bias) AddBias(y, call.Input(kBias, out), rows, out, 1);
    return;
  }
  const ConstView<Scalar> dy(call.Input(kDy, out_total), rows, out);
  if (op.Flag("needs_dx")) {
    View<Scalar> dx(call.Output(kDx, in_total), rows, in);
    if (op.Accumulates(0)) {
      dx.noalias() += dy * weight;
    } else {
      dx.noalias() = dy * weight;
    }
  }
  const Matrix<Scalar> dweight = dy.transpose() * x;
  StoreParameterGradient(call, kWeight, dweight.data(), dweight.size());
  if (!bias) return;
  const Matrix<Scalar> dbias = BiasGradient(dy.data(), rows, out, 1);
  StoreParameterGradient(call, kBias, dbias.data(), dbias.size());
}

}  // namespace

template <typename Scalar>
bool RunProduct(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kConv2d:
      return Convolution<Scalar>(call).Run(), true;
    case OpType::kLinear:
      return RunLinear(call), true;
    default:
      return false;
  }
}

template bool RunProduct(const Call<float>&);
template bool RunProduct(const Call<double>&);

}  // namespace spillway::cpu
