#include "backend/cuda/sequence_kernels.h"

#include <cfloat>
#include <cmath>

#include "backend/cuda/device_rows.h"

namespace spillway::cuda {
namespace {

// The most columns of a row whose softmax a warp keeps in registers.
constexpr int64_t kMostWarpColumns = 1024;

// Each warp computes the softmax of one row.
template <int kParts, bool kWide>
__global__ void SoftmaxRowsKernel(ConstElements x, Elements y, int64_t rows, int64_t columns,
                                  bool causal) {
  using Warp = Team<true>;
  const int64_t r = Warp::row();
  if (r >= rows) return;
  const int64_t count = causal ? r - Quotient(r, columns) * columns + 1 : columns;
  const RowPartOf<kWide> row{r * columns, columns};
  Floats<4> part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (Warp::Column(i) < count) part[i] = row.Get(x, Warp::Column(i));
  }
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      if (Warp::Column(i) + k < count) largest = fmaxf(largest, part[i].v[k]);
    }
  }
  largest = WarpReduce<Max>(largest);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      part[i].v[k] = Warp::Column(i) + k < count ? expf(part[i].v[k] - largest) : 0;
      sum += part[i].v[k];
    }
  }
  const float scale = 1 / WarpReduce<Sum>(sum);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (float& value : part[i].v) value *= scale;
    row.Put(y, Warp::Column(i), part[i], false);
  }
}

template <int kParts, bool kWide>
__global__ void SoftmaxBackwardRowsKernel(ConstElements y, ConstElements dy, Elements dx,
                                          bool accumulate, int64_t rows, int64_t columns,
                                          bool causal) {
  using Warp = Team<true>;
  const int64_t r = Warp::row();
  if (r >= rows) return;
  const int64_t count = causal ? r - Quotient(r, columns) * columns + 1 : columns;
  const RowPartOf<kWide> row{r * columns, columns};
  Floats<4> p[kParts], gradient[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (Warp::Column(i) >= count) continue;
    p[i] = row.Get(y, Warp::Column(i));
    gradient[i] = row.Get(dy, Warp::Column(i));
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      if (Warp::Column(i) + k < count) sum += p[i].v[k] * gradient[i].v[k];
    }
  }
  sum = WarpReduce<Sum>(sum);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      const bool inside = Warp::Column(i) + k < count;
      p[i].v[k] = inside ? p[i].v[k] * (gradient[i].v[k] - sum) : 0;
    }
    row.Put(dx, Warp::Column(i), p[i], accumulate);
  }
}

// The columns of a row in parts of four whose addresses are aligned, wherever the row begins.
struct AlignedRow {
  int64_t first;
  int64_t columns;
  bool aligned;  // the array begins at an aligned address

  // Returns the first column, which is in front of the row if the row's address is not aligned.
  __device__ int64_t begin() const { return -(first & 3) + threadIdx.x * 4; }
  __device__ bool Whole(int64_t column) const {
    return aligned && column >= 0 && column + 4 <= columns;
  }
  __device__ bool Has(int64_t column) const { return column >= 0 && column < columns; }
  __device__ Floats<4> Get(const ConstElements& from, int64_t column) const {
    Floats<4> part{};
    if (Whole(column)) {
      const Pack<4> pack = Load<4>(from, first + column);
      for (int k = 0; k < 4; ++k) part.v[k] = pack[k];
    } else {
      for (int k = 0; k < 4; ++k) {
        if (Has(column + k)) part.v[k] = LoadOne(from, first + column + k);
      }
    }
    return part;
  }
  __device__ void Put(const Elements& to, int64_t column, const Floats<4>& part,
                      bool accumulate) const {
    if (Whole(column)) {
      StoreOrAdd<4>(to, first + column, part, accumulate);
    } else {
      for (int k = 0; k < 4; ++k) {
        if (Has(column + k)) {
          StoreOrAdd<1>(to, first + column + k, {{part.v[k]}}, accumulate);
        }
      }
    }
  }
};

// Each block computes the softmax of one row in two passes.
__global__ void SoftmaxKernel(ConstElements x, Elements y, int64_t columns, bool causal,
                              bool aligned) {
  const int64_t count = causal ? blockIdx.x % columns + 1 : columns;
  const AlignedRow row{blockIdx.x * columns, columns, aligned};
  const auto has = [&](int64_t column) { return column >= 0 && column < count; };
  float largest = -INFINITY, sum = 0;
#pragma unroll 2
  for (int64_t column = row.begin(); column < count; column += blockDim.x * 4) {
    const Floats<4> part = row.Get(x, column);
    float most = largest;
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) most = fmaxf(most, part.v[k]);
    }
    if (most > largest) {
      sum *= expf(largest - most);
      largest = most;
    }
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) sum += expf(part.v[k] - largest);
    }
  }
  const float all = BlockReduce<Max>(largest);
  const float scale = 1 / BlockReduce<Sum>(largest == -INFINITY ? sum : sum * expf(largest - all));
#pragma unroll 2
  for (int64_t column = row.begin(); column < columns; column += blockDim.x * 4) {
    Floats<4> part = row.Get(x, column);
    for (int k = 0; k < 4; ++k) {
      part.v[k] = has(column + k) ? scale * expf(part.v[k] - all) : 0;
    }
    row.Put(y, column, part, false);
  }
}

__global__ void SoftmaxBackwardKernel(ConstElements y, ConstElements dy, Elements dx,
                                      bool accumulate, int64_t columns, bool causal, bool aligned) {
  const int64_t count = causal ? blockIdx.x % columns + 1 : columns;
  const AlignedRow row{blockIdx.x * columns, columns, aligned};
  const auto has = [&](int64_t column) { return column >= 0 && column < count; };
  float sum = 0;
  for (int64_t column = row.begin(); column < count; column += blockDim.x * 4) {
    const Floats<4> p = row.Get(y, column), gradient = row.Get(dy, column);
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) sum += p.v[k] * gradient.v[k];
    }
  }
  sum = BlockReduce<Sum>(sum);
  for (int64_t column = row.begin(); column < columns; column += blockDim.x * 4) {
    const Floats<4> gradient = row.Get(dy, column);
    Floats<4> part = row.Get(y, column);
    for (int k = 0; k < 4; ++k) {
      part.v[k] = has(column + k) ? part.v[k] * (gradient.v[k] - sum) : 0;
    }
    row.Put(dx, column, part, accumulate);
  }
}

constexpr unsigned kLossThreads = 1024;

__global__ void CrossEntropyKernel(ConstElements y, const int32_t* labels, float* loss,
                                   int64_t rows, int64_t classes, float scale, bool accumulate) {
  float sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kLossThreads) {
    const int64_t label = labels[row];
    const bool known = label >= 0 && label < classes;
    const float p = known ? LoadOne(y, row * classes + label) : NAN;
    sum -= logf(p < FLT_MIN ? FLT_MIN : p);  // NaN stays NaN
  }
  sum = BlockReduce<Sum>(sum);
  if (threadIdx.x == 0) *loss = (accumulate ? *loss : 0.0f) + scale * sum;
}

__global__ void LossBackwardKernel(ConstElements y, const int32_t* labels, Elements dx,
                                   int64_t classes, float scale, bool aligned) {
  const AlignedRow row{blockIdx.x * classes, classes, aligned};
  const int64_t label = labels[blockIdx.x];
#pragma unroll 2
  for (int64_t column = row.begin(); column < classes; column += blockDim.x * 4) {
    Floats<4> part = row.Get(y, column);
    for (int k = 0; k < 4; ++k) part.v[k] = scale * (part.v[k] - (column + k == label ? 1 : 0));
    row.Put(dx, column, part, false);
  }
}

}  // namespace

void Softmax(ConstElements x, Elements y, int64_t rows, int64_t columns, bool causal,
             cudaStream_t stream) {
  if (rows <= 0) return;
  if (columns <= kMostWarpColumns) {
    WithTeam(columns, WideRows(columns, {x, y}), [&](auto team, auto parts, auto wide) {
      if constexpr (decltype(team)::kIsWarp) {
        SoftmaxRowsKernel<decltype(parts)::value, wide()>
            <<<team.Blocks(rows), team.Threads(), 0, stream>>>(x, y, rows, columns, causal);
      }
    });
  } else {
    SoftmaxKernel<<<static_cast<unsigned>(rows), RowThreads(columns, 512), 0, stream>>>(
        x, y, columns, causal, Aligned({x, y}));
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SoftmaxBackward(ConstElements y, ConstElements dy, Elements dx, bool accumulate, int64_t rows,
                     int64_t columns, bool causal, cudaStream_t stream) {
  if (rows <= 0) return;
  if (columns <= kMostWarpColumns) {
    WithTeam(columns, WideRows(columns, {y, dy, dx}), [&](auto team, auto parts, auto wide) {
      if constexpr (decltype(team)::kIsWarp) {
        SoftmaxBackwardRowsKernel<decltype(parts)::value, wide()>
            <<<team.Blocks(rows), team.Threads(), 0, stream>>>(y, dy, dx, accumulate, rows, columns,
                                                               causal);
      }
    });
  } else {
    SoftmaxBackwardKernel<<<static_cast<unsigned>(rows), RowThreads(columns, 512), 0, stream>>>(
        y, dy, dx, accumulate, columns, causal, Aligned({y, dy, dx}));
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void CrossEntropy(ConstElements y, const int32_t* labels, float* loss, int64_t rows,
                  int64_t classes, float scale, bool accumulate, cudaStream_t stream) {
  CrossEntropyKernel<<<1, kLossThreads, 0, stream>>>(y, labels, loss, rows, classes, scale,
                                                     accumulate);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SoftmaxCrossEntropyBackward(ConstElements y, const int32_t* labels, Elements dx, int64_t rows,
                                 int64_t classes, float scale, cudaStream_t stream) {
  if (rows <= 0) return;
  LossBackwardKernel<<<static_cast<unsigned>(rows), RowThreads(classes, 512), 0, stream>>>(
      y, labels, dx, classes, scale, Aligned({y, dx}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway::cuda
