// Max and average pooling. A window is clipped to the input. A window that misses the input
// entirely has maximum -infinity and average 0. In backward, if y is not a value of its window, the
// gradient is NaN.

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/operands.h"

namespace spillway::cpu {
namespace {

// A window along one dimension.
struct Window {
  int64_t begin, end;  // half-open, clipped to the input
  int64_t length;      // clipped to the padded input only
};

struct Axis {
  int64_t in, out, kernel, stride, pad;

  Window At(int64_t position) const {
    const int64_t first = position * stride - pad;
    const int64_t last = std::min(first + kernel, in + pad);
    return {std::max<int64_t>(first, 0), std::min(last, in), std::max<int64_t>(last - first, 0)};
  }
};

struct Shape {
  int64_t planes;
  Axis rows, columns;

  explicit Shape(const Op& op)
      : planes(Product(op, {op.batch, op.IntAttribute("channels", 0)})),
        rows{op.IntAttribute("in_height", 0), op.IntAttribute("out_height", 0),
             op.IntAttribute("kernel_h", 1), op.IntAttribute("stride_h", 1),
             op.IntAttribute("pad_h", 0)},
        columns{op.IntAttribute("in_width", 0), op.IntAttribute("out_width", 0),
                op.IntAttribute("kernel_w", 1), op.IntAttribute("stride_w", 1),
                op.IntAttribute("pad_w", 0)} {}

  int64_t in_plane() const { return rows.in * columns.in; }
  int64_t out_plane() const { return rows.out * columns.out; }

  // Calls visit(offset of the plane in x, element of y, window of rows, window of columns) for each
  // element of y.
  template <typename Visitor>
  void ForEachWindow(const Visitor& visit) const {
    int64_t to = 0;
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t p = 0; p < rows.out; ++p) {
        for (int64_t q = 0; q < columns.out; ++q) {
          visit(plane * in_plane(), to++, rows.At(p), columns.At(q));
        }
      }
    }
  }

  // Calls visit(i) for each element i of the plane that lies in the window, in row-major order.
  template <typename Visitor>
  void ForEachElement(const Window& h, const Window& w, const Visitor& visit) const {
    for (int64_t row = h.begin; row < h.end; ++row) {
      for (int64_t column = w.begin; column < w.end; ++column) visit(row * columns.in + column);
    }
  }
};

}  // namespace

template <typename Scalar>
bool RunPooling(const Call<Scalar>& call) {
  if (call.op.type != OpType::kMaxPool2d && call.op.type != OpType::kAvgPool2d) return false;
  const Shape shape(call.op);
  const int64_t in = Product(call.op, {shape.planes, shape.in_plane()});
  const int64_t out = Product(call.op, {shape.planes, shape.out_plane()});
  const bool max = call.op.type == OpType::kMaxPool2d;
  if (call.op.phase == Phase::kForward) {
    const Scalar* x = call.Input(kX, in);
    Scalar* y = call.Output(kY, out);
    shape.ForEachWindow([&](int64_t plane, int64_t to, const Window& h, const Window& w) {
      Scalar result = max ? -std::numeric_limits<Scalar>::infinity() : Scalar(0);
      shape.ForEachElement(h, w, [&](int64_t i) {
        const Scalar value = x[plane + i];
        if (!max) {
          result += value;
        } else if (value > result || std::isnan(value)) {
          result = value;
        }
      });
      const int64_t divisor = max ? 1 : std::max<int64_t>(h.length * w.length, 1);
      y[to] = result / static_cast<Scalar>(divisor);
    });
    return true;
  }
  const Scalar* x = max ? call.Input(kX, in) : nullptr;
  const Scalar* y = max ? call.Input(kY, out) : nullptr;
  const Scalar* dy = call.Input(kDy, out);
  Scalar* dx = call.Output(kDx, in);
  if (!call.op.Accumulates(0)) std::fill_n(dx, in, Scalar(0));
  shape.ForEachWindow([&](int64_t plane, int64_t to, const Window& h, const Window& w) {
    if (max) {
      int64_t first = -1, winner = -1;
      shape.ForEachElement(h, w, [&](int64_t i) {
        if (first < 0) first = i;
        if (winner < 0 && x[plane + i] == y[to]) winner = i;
      });
      if (winner >= 0) {
        dx[plane + winner] += dy[to];
      } else if (first >= 0) {  // y is not the maximum of x
        dx[plane + first] = std::numeric_limits<Scalar>::quiet_NaN();
      }
    } else {
      const auto divisor = static_cast<Scalar>(std::max<int64_t>(h.length * w.length, 1));
      const Scalar share = dy[to] / divisor;
      shape.ForEachElement(h, w, [&](int64_t i) { dx[plane + i] += share; });
    }
  });
  return true;
}

template bool RunPooling(const Call<float>&);
template bool RunPooling(const Call<double>&);

}  // namespace spillway::cpu
