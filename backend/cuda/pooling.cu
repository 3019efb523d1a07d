#include "backend/cuda/pooling.h"

#include <cuda_bf16.h>

#include "backend/cuda/cuda_error.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

// Returns the half-open range of inputs that output `out` covers along one dimension, clipped to
// the input.
struct Window {
  int begin, end;
};

__device__ Window InputWindow(int out, int stride, int pad, int kernel, int extent) {
  const int begin = out * stride - pad;
  return {max(begin, 0), min(begin + kernel, extent)};
}

// Returns the half-open range of outputs whose windows cover input `in` along one dimension.
__device__ Window OutputWindow(int in, int stride, int pad, int kernel, int extent) {
  const int reach = in + pad - kernel;  // start of the last window that ends before `in`
  return {reach < 0 ? 0 : reach / stride + 1, min((in + pad) / stride + 1, extent)};
}

// Returns the number of elements, along one dimension, by which the average of output `out` is
// divided.
__device__ int Divisor(int out, int stride, int pad, int kernel, int extent) {
  const int begin = out * stride - pad;
  return min(begin + kernel, extent + pad) - begin;
}

__device__ float Float(float value) { return value; }
__device__ float Float(__nv_bfloat16 value) { return __bfloat162float(value); }

// The position of a thread's element in a stack of planes. `Locate` computes in 32 bits if `Index`
// is a 32-bit type.
struct Position {
  int64_t plane;
  int row, column;
};

template <typename Index>
__device__ Position Locate(Index i, int height, int width) {
  const Index line = i / static_cast<Index>(width);
  const Index plane = line / static_cast<Index>(height);
  return {static_cast<int64_t>(plane), static_cast<int>(line - plane * height),
          static_cast<int>(i - line * width)};
}

template <typename Index, bool kMax, typename Element>
__global__ void PoolKernel(PoolShape s, const Element* __restrict__ x, Element* __restrict__ y,
                           Index count) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const Position p = Locate(i, s.out_height, s.out_width);
  const Window rows = InputWindow(p.row, s.stride_h, s.pad_h, s.kernel_h, s.in_height);
  const Window columns = InputWindow(p.column, s.stride_w, s.pad_w, s.kernel_w, s.in_width);
  const Element* plane = x + p.plane * s.in_height * s.in_width;
  float result = kMax ? -INFINITY : 0;
  for (int h = rows.begin; h < rows.end; ++h) {
    for (int w = columns.begin; w < columns.end; ++w) {
      const float value = Float(plane[static_cast<int64_t>(h) * s.in_width + w]);
      if (kMax) {
        if (value > result || isnan(value)) result = value;
      } else {
        result += value;
      }
    }
  }
  if (!kMax) {
    result /= static_cast<float>(Divisor(p.row, s.stride_h, s.pad_h, s.kernel_h, s.in_height) *
                                 Divisor(p.column, s.stride_w, s.pad_w, s.kernel_w, s.in_width));
  }
  y[i] = static_cast<Element>(result);
}

// Returns true if an element of the window before (row, column) also has `value`.
template <typename Element>
__device__ bool TakenEarlier(const Element* plane, int width, Window rows, Window columns, int row,
                             int column, float value) {
  for (int h = rows.begin; h <= row; ++h) {
    const int end = h == row ? column : columns.end;
    for (int w = columns.begin; w < end; ++w) {
      if (Float(plane[static_cast<int64_t>(h) * width + w]) == value) return true;
    }
  }
  return false;
}

template <typename Index, bool kMax, typename Element>
__global__ void PoolBackwardKernel(PoolShape s, const Element* __restrict__ x,
                                   const Element* __restrict__ y, const Element* __restrict__ dy,
                                   Element* __restrict__ dx, bool accumulate, Index count) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const Position p = Locate(i, s.in_height, s.in_width);
  const Window out_rows = OutputWindow(p.row, s.stride_h, s.pad_h, s.kernel_h, s.out_height);
  const Window out_columns = OutputWindow(p.column, s.stride_w, s.pad_w, s.kernel_w, s.out_width);
  const int64_t out_plane = p.plane * s.out_height * s.out_width;
  const Element* in_plane = kMax ? x + p.plane * s.in_height * s.in_width : nullptr;
  const float value = kMax ? Float(x[i]) : 0;
  float sum = 0;
  for (int h = out_rows.begin; h < out_rows.end; ++h) {
    for (int w = out_columns.begin; w < out_columns.end; ++w) {
      const int64_t out = out_plane + static_cast<int64_t>(h) * s.out_width + w;
      if (kMax) {
        if (value == Float(y[out]) &&
            !TakenEarlier(in_plane, s.in_width,
                          InputWindow(h, s.stride_h, s.pad_h, s.kernel_h, s.in_height),
                          InputWindow(w, s.stride_w, s.pad_w, s.kernel_w, s.in_width), p.row,
                          p.column, value)) {
          sum += Float(dy[out]);
        }
      } else {
        sum += Float(dy[out]) /
               static_cast<float>(Divisor(h, s.stride_h, s.pad_h, s.kernel_h, s.in_height) *
                                  Divisor(w, s.stride_w, s.pad_w, s.kernel_w, s.in_width));
      }
    }
  }
  dx[i] = static_cast<Element>(accumulate ? Float(dx[i]) + sum : sum);
}

// Calls launch(blocks, count) with `count` in the narrowest index type that holds it.
template <typename Launcher>
void WithIndex(int64_t count, const Launcher& launch) {
  if (count <= 0) return;
  const unsigned blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (count < INT32_MAX) {
    launch(blocks, static_cast<uint32_t>(count));
  } else {
    launch(blocks, static_cast<uint64_t>(count));
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

template <bool kMax, typename Element>
void Pool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream) {
  WithIndex(shape.planes * shape.out_height * shape.out_width, [&](unsigned blocks, auto count) {
    PoolKernel<decltype(count), kMax><<<blocks, kThreads, 0, stream>>>(
        shape, static_cast<const Element*>(x.data), static_cast<Element*>(y.data), count);
  });
}

template <bool kMax>
void Pool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream) {
  const auto run = x.bf16 ? Pool<kMax, __nv_bfloat16> : Pool<kMax, float>;
  run(shape, x, y, stream);
}

template <bool kMax, typename Element>
void PoolBackward(const PoolShape& shape, ConstElements x, ConstElements y, ConstElements dy,
                  Elements dx, bool accumulate, cudaStream_t stream) {
  WithIndex(shape.planes * shape.in_height * shape.in_width, [&](unsigned blocks, auto count) {
    PoolBackwardKernel<decltype(count), kMax><<<blocks, kThreads, 0, stream>>>(
        shape, static_cast<const Element*>(x.data), static_cast<const Element*>(y.data),
        static_cast<const Element*>(dy.data), static_cast<Element*>(dx.data), accumulate, count);
  });
}

template <bool kMax>
void PoolBackward(const PoolShape& shape, ConstElements x, ConstElements y, ConstElements dy,
                  Elements dx, bool accumulate, cudaStream_t stream) {
  const auto run = dx.bf16 ? PoolBackward<kMax, __nv_bfloat16> : PoolBackward<kMax, float>;
  run(shape, x, y, dy, dx, accumulate, stream);
}

}  // namespace

void MaxPool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream) {
  Pool<true>(shape, x, y, stream);
}

void MaxPoolBackward(const PoolShape& shape, ConstElements x, ConstElements y, ConstElements dy,
                     Elements dx, bool accumulate, cudaStream_t stream) {
  PoolBackward<true>(shape, x, y, dy, dx, accumulate, stream);
}

void AveragePool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream) {
  Pool<false>(shape, x, y, stream);
}

void AveragePoolBackward(const PoolShape& shape, ConstElements dy, Elements dx, bool accumulate,
                         cudaStream_t stream) {
  PoolBackward<false>(shape, {}, {}, dy, dx, accumulate, stream);
}

}  // namespace spillway::cuda
