// Matrix products whose order of summation depends on the depth alone. A call for some of the rows
// or columns therefore gives the same bits as a call for all of them.
//
// Eigen's products are a little faster, but how they split the depth depends on the whole shape.

#ifndef SPILLWAY_BACKEND_CPU_ORDERED_PRODUCT_H_
#define SPILLWAY_BACKEND_CPU_ORDERED_PRODUCT_H_

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <vector>

namespace spillway::cpu {

// Computes c += a * b. c has rows x columns elements, a has rows x depth and b has depth x columns;
// all are dense and row-major. The terms of an element are added to it in the order of the depth,
// so that one call for each successive part of the depth gives the same bits too. The object keeps
// its buffer between calls.
template <typename Scalar>
class OrderedProduct {
 public:
  void Add(const Scalar* a, const Scalar* b, Scalar* c, int64_t rows, int64_t columns,
           int64_t depth) {
    a_ = a, b_ = b, c_ = c;
    columns_ = columns, depth_ = depth;
    for (int64_t column = 0; column < columns; column += kColumns) {
      const int64_t width = std::min(kColumns, columns - column);
      for (int64_t from = 0; from < depth; from += kDepth) {
        const int64_t length = std::min(kDepth, depth - from);
        Pack(column, width, from, length);
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) AddRows<4>(row, column, width, from, length);
        for (; row < rows; ++row) AddRows<1>(row, column, width, from, length);
      }
    }
  }

 private:
  static constexpr int64_t kPanel = 8;      // columns that are summed side by side
  static constexpr int64_t kColumns = 512;  // columns that are packed at a time
  static constexpr int64_t kDepth = 256;    // rows of b that are packed at a time
  using Panel = Eigen::Array<Scalar, kPanel, 1>;

  // Packs part of b panel by panel, each row by row. Zeros fill the last panel behind the last
  // column.
  void Pack(int64_t column, int64_t width, int64_t from, int64_t length) {
    const int64_t panels = (width + kPanel - 1) / kPanel;
    packed_.resize(static_cast<size_t>(panels * length));
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = p * kPanel;
      const int64_t count = std::min(kPanel, width - first);
      for (int64_t d = 0; d < length; ++d) {
        packed_[static_cast<size_t>(p * length + d)] =
            Load(b_ + (from + d) * columns_ + column + first, count);
      }
    }
  }

  template <int kRows>
  void AddRows(int64_t row, int64_t column, int64_t width, int64_t from, int64_t length) {
    const Scalar* a = a_ + row * depth_ + from;
    Scalar* c = c_ + row * columns_ + column;
    for (int64_t first = 0; first < width; first += kPanel) {
      const Panel* b = &packed_[static_cast<size_t>(first / kPanel * length)];
      const int64_t count = std::min(kPanel, width - first);
      Panel sums[kRows];
      for (int r = 0; r < kRows; ++r) {
        sums[r] = Load(c + r * columns_ + first, count);
      }
      for (int64_t d = 0; d < length; ++d) {
        for (int r = 0; r < kRows; ++r) sums[r] += a[r * depth_ + d] * b[d];
      }
      for (int r = 0; r < kRows; ++r) {
        Scalar* to = c + r * columns_ + first;
        if (count == kPanel) {
          Eigen::Map<Panel>{to} = sums[r];
        } else {
          std::copy_n(sums[r].data(), count, to);
        }
      }
    }
  }

  static Panel Load(const Scalar* from, int64_t count) {
    if (count == kPanel) return Eigen::Map<const Panel>(from);
    Panel panel = Panel::Zero();
    std::copy_n(from, count, panel.data());
    return panel;
  }

  const Scalar* a_ = nullptr;
  const Scalar* b_ = nullptr;
  Scalar* c_ = nullptr;
  int64_t columns_ = 0, depth_ = 0;
  std::vector<Panel, Eigen::aligned_allocator<Panel>> packed_;
};

// Computes c = a * transpose(b). c has rows x columns elements, a has rows x depth and b has
// columns x depth; all are dense and row-major. Term d of an element is added to the sum d % 8 of
// eight sums, which are then added from first to last.
template <typename Scalar>
void OrderedDots(const Scalar* a, const Scalar* b, Scalar* c, int64_t rows, int64_t columns,
                 int64_t depth) {
  constexpr int64_t kLanes = 8;
  using Lanes = Eigen::Array<Scalar, kLanes, 1>;
  using Loaded = Eigen::Map<const Lanes>;
  const auto dots = [&]<int kCount>(const Scalar* x, int64_t row, int64_t column) {
    Lanes sums[kCount];
    for (Lanes& sum : sums) sum.setZero();
    const Scalar* y = b + column * depth;
    int64_t d = 0;
    for (; d + kLanes <= depth; d += kLanes) {
      const Lanes at = Loaded(x + d);
      for (int i = 0; i < kCount; ++i) sums[i] += at * Loaded(y + i * depth + d);
    }
    for (int64_t lane = 0; d < depth; ++d, ++lane) {
      for (int i = 0; i < kCount; ++i) sums[i][lane] += x[d] * y[i * depth + d];
    }
    for (int i = 0; i < kCount; ++i) {
      Scalar sum = 0;
      for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[i][lane];
      c[row * columns + column + i] = sum;
    }
  };
  for (int64_t column = 0; column < columns;) {
    const bool four = column + 4 <= columns;
    for (int64_t row = 0; row < rows; ++row) {
      const Scalar* x = a + row * depth;
      four ? dots.template operator()<4>(x, row, column)
           : dots.template operator()<1>(x, row, column);
    }
    column += four ? 4 : 1;
  }
}

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_ORDERED_PRODUCT_H_
