#include "backend/cuda/sequence_kernels.h"

#include <cmath>

#include "backend/cuda/device_rows.h"

namespace spillway::cuda {
namespace {

__global__ void EmbedKernel(const int32_t* tokens, ConstElements table, Elements y,
                            int64_t vocabulary, int64_t features, bool wide) {
  const int64_t token = tokens[blockIdx.x];
  const bool known = token >= 0 && token < vocabulary;
  const RowPart from{known ? token * features : 0, features, wide};
  const RowPart to{int64_t{blockIdx.x} * features, features, wide};
  for (int64_t column = threadIdx.x * 4; column < features; column += blockDim.x * 4) {
    Floats<4> part = from.Get(table, column);
    if (!known) part = {{NAN, NAN, NAN, NAN}};
    to.Put(y, column, part, false);
  }
}

// The block of a token's first row adds up all rows of the token; the others do nothing.
__global__ void EmbedBackwardKernel(const int32_t* tokens, ConstElements dy, Elements dtable,
                                    GradientScale scale, int64_t rows, int64_t vocabulary,
                                    int64_t features, bool wide) {
  const int64_t row = blockIdx.x;
  const int32_t token = tokens[row];
  if (token < 0 || token >= vocabulary) return;
  bool before = false;
  for (int64_t i = threadIdx.x; i < row; i += blockDim.x) before |= tokens[i] == token;
  if (__syncthreads_or(before)) return;

  __shared__ int64_t list[kThreads];  // rows of the token, in order
  __shared__ int counts[kThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const RowPart to{token * features, features, wide};
  bool first = true;
  for (int64_t base = row; base < rows; base += blockDim.x) {
    const int64_t i = base + threadIdx.x;
    const bool equal = i < rows && tokens[i] == token;
    const unsigned votes = __ballot_sync(0xffffffffu, equal);
    if (!__syncthreads_or(equal)) continue;
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int place = __popc(votes & ((1u << lane) - 1));
    int count = 0;
    for (unsigned w = 0; w < warps; ++w) {
      if (w < warp) place += counts[w];
      count += counts[w];
    }
    if (equal) list[place] = i;
    __syncthreads();
    const float beta = first ? scale.beta : 1;
    for (int64_t column = threadIdx.x * 4; column < features; column += blockDim.x * 4) {
      Floats<4> sum{};
      for (int k = 0; k < count; ++k) {
        const Floats<4> part = RowPart{list[k] * features, features, wide}.Get(dy, column);
        for (int j = 0; j < 4; ++j) sum.v[j] += part.v[j];
      }
      for (float& value : sum.v) value *= scale.alpha;
      to.Put(dtable, column, sum, beta != 0);
    }
    first = false;
    __syncthreads();  // the next round overwrites the list
  }
}

struct EmbedPositionsFunction {
  ConstElements x, table, token;  // without a class token, its data are null
  Elements y;
  int64_t length, features, span;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t row = Quotient(i, features), column = i - row * features;
    const int64_t sample = Quotient(row, length), t = row - sample * length;
    const Pack<kWidth> addend = Load<kWidth>(table, Quotient(t, span) * features + column);
    Floats<kWidth> floats;
    if (token.data == nullptr) {
      const Pack<kWidth> value = Load<kWidth>(x, i);
      for (int k = 0; k < kWidth; ++k) floats.v[k] = value[k] + addend[k];
    } else {
      for (int k = 0; k < kWidth; ++k) {
        const int64_t pixel = (sample * features + column + k) * (length - 1) + t - 1;
        floats.v[k] = (t == 0 ? LoadOne(token, column + k) : LoadOne(x, pixel)) + addend[k];
      }
    }
    Store(y, i, floats);
  }
};

struct PixelGradientsFunction {
  ConstElements dy;
  Elements dx;
  bool accumulate;
  int64_t length, features;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t pixels = length - 1;
    const int64_t plane = Quotient(i, pixels), pixel = i - plane * pixels;
    const int64_t sample = Quotient(plane, features), column = plane - sample * features;
    const float value = LoadOne(dy, (sample * length + pixel + 1) * features + column);
    StoreOrAdd<1>(dx, i, {{value}}, accumulate);
  }
};

// --- Rotary embedding

struct RotateCall {
  ConstElements x;
  Elements y;
  bool accumulate;
  double sign;
  int64_t samples, length, heads, half;
  double log_theta;  // to the base 2
};

// Thread x of the grid turns one pair of features at one position, in the heads of the samples from
// blockIdx.y on.
__global__ void RotateKernel(RotateCall call) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= call.length * call.half) return;
  const int64_t t = at / call.half, i = at - t * call.half;
  const double share = static_cast<double>(i) / static_cast<double>(call.half);
  double sine, cosine;
  sincos(call.sign * static_cast<double>(t) * exp2(-share * call.log_theta), &sine, &cosine);
  const auto s = static_cast<float>(sine), c = static_cast<float>(cosine);
  for (int64_t n = blockIdx.y; n < call.samples; n += gridDim.y) {
    int64_t a = (n * call.length + t) * call.heads * 2 * call.half + i;
#pragma unroll 4
    for (int64_t h = 0; h < call.heads; ++h, a += 2 * call.half) {
      const float first = LoadOne(call.x, a), second = LoadOne(call.x, a + call.half);
      StoreOrAdd<1>(call.y, a, {{first * c - second * s}}, call.accumulate);
      StoreOrAdd<1>(call.y, a + call.half, {{second * c + first * s}}, call.accumulate);
    }
  }
}

}  // namespace

void Embed(const int32_t* tokens, ConstElements table, Elements y, int64_t rows, int64_t vocabulary,
           int64_t features, cudaStream_t stream) {
  if (rows <= 0) return;
  EmbedKernel<<<static_cast<unsigned>(rows), RowThreads(features, kThreads), 0, stream>>>(
      tokens, table, y, vocabulary, features, WideRows(features, {table, y}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void EmbedBackward(const int32_t* tokens, ConstElements dy, Elements dtable, GradientScale scale,
                   int64_t rows, int64_t vocabulary, int64_t features, cudaStream_t stream) {
  if (scale.beta == 0) {
    const auto bytes = static_cast<size_t>(dtable.Size(vocabulary * features));
    SPILLWAY_CUDA_CALL(cudaMemsetAsync(dtable.data, 0, bytes, stream));
  }
  if (rows <= 0) return;
  EmbedBackwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      tokens, dy, dtable, scale, rows, vocabulary, features, WideRows(features, {dy, dtable}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void EmbedPositions(ConstElements x, ConstElements table, ConstElements token, Elements y,
                    int64_t samples, int64_t length, int64_t features, int64_t span,
                    cudaStream_t stream) {
  ForEach(samples * length * features, {x, table, token, y}, features % 8 == 0,
          EmbedPositionsFunction{x, table, token, y, length, features, span}, stream);
}

void PixelGradients(ConstElements dy, Elements dx, bool accumulate, int64_t samples, int64_t length,
                    int64_t features, cudaStream_t stream) {
  ForEach(samples * (length - 1) * features, {dy, dx}, false,
          PixelGradientsFunction{dy, dx, accumulate, length, features}, stream);
}

void Rotate(ConstElements x, Elements y, bool backward, bool accumulate, int64_t samples,
            int64_t length, int64_t heads, int64_t head_dim, double theta, cudaStream_t stream) {
  const int64_t half = head_dim / 2;
  if (samples <= 0 || length * half <= 0) return;
  const dim3 grid(BlockCount(length * half), static_cast<unsigned>(std::min<int64_t>(samples, 64)));
  RotateKernel<<<grid, kThreads, 0, stream>>>(
      {x, y, accumulate, backward ? -1.0 : 1.0, samples, length, heads, half, std::log2(theta)});
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway::cuda
