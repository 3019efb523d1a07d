#include "backend/cuda/elementwise.h"

#include <cfloat>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_elements.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

struct FillUniformFunction {
  Elements out;
  uint64_t seed;
  float scale, centre;
  int64_t first;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) {
      // The sum is rounded separately, as on the host. A fused multiply-add would round
      // differently.
      floats.v[k] = __fadd_rn(centre, RandomFloat(seed, first + i + k, scale));
    }
    Store(out, i, floats);
  }
};

struct FillLabelsFunction {
  int32_t* out;
  uint64_t seed;
  int32_t classes;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    out[i] = RandomLabel(seed, i, classes);
  }
};

// An activation provides its value and the gradient of x. The gradient's first argument is the
// operand that backward reads, y or x.
struct ReluActivation {
  __device__ static float Value(float x) { return x < 0 ? 0 : x; }
  __device__ static float Gradient(float y, float dy) { return y > 0 ? dy : 0; }
};

struct GeluActivation {
  __device__ static float Distribution(float x) { return 0.5f * (1 + erff(x * 0.70710678f)); }
  __device__ static float Value(float x) { return x * Distribution(x); }
  __device__ static float Gradient(float x, float dy) {
    return dy * (Distribution(x) + x * 0.39894228f * expf(-0.5f * x * x));
  }
};

struct SiluActivation {
  __device__ static float Sigmoid(float x) { return 1 / (1 + expf(-x)); }
  __device__ static float Value(float x) { return x * Sigmoid(x); }
  __device__ static float Gradient(float x, float dy) {
    return dy * Sigmoid(x) * (1 + x * (1 - Sigmoid(x)));
  }
};

// Calls run(activation) with the activation of the op type. REQUIRES: the op type is an activation.
template <typename Run>
void WithActivation(std::string_view type, const Run& run) {
  if (type == "relu") return run(ReluActivation());
  if (type == "gelu") return run(GeluActivation());
  if (type == "silu") return run(SiluActivation());
  SPILLWAY_CHECK(false);
}

template <typename Activation>
struct ActivationFunction {
  ConstElements x;
  Elements y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> pack = Load<kWidth>(x, i);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = Activation::Value(pack[k]);
    Store(y, i, floats);
  }
};

template <typename Activation>
struct ActivationBackwardFunction {
  ConstElements saved;
  ConstElements dy;
  Elements dx;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> value = Load<kWidth>(saved, i);
    const Pack<kWidth> gradient = Load<kWidth>(dy, i);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = Activation::Gradient(value[k], gradient[k]);
    StoreOrAdd(dx, i, floats, accumulate);
  }
};

struct AddFunction {
  ConstElements a;
  ConstElements b;
  Elements y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> one = Load<kWidth>(a, i);
    const Pack<kWidth> other = Load<kWidth>(b, i);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = one[k] + other[k];
    Store(y, i, floats);
  }
};

struct MultiplyFunction {
  ConstElements a;
  ConstElements b;
  Elements y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> one = Load<kWidth>(a, i);
    const Pack<kWidth> other = Load<kWidth>(b, i);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = one[k] * other[k];
    Store(y, i, floats);
  }
};

struct MultiplyBackwardFunction {
  ConstElements a;
  ConstElements b;
  ConstElements dy;
  Elements da;
  Elements db;
  bool accumulate_a;
  bool accumulate_b;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> one = Load<kWidth>(a, i);
    const Pack<kWidth> other = Load<kWidth>(b, i);
    const Pack<kWidth> gradient = Load<kWidth>(dy, i);
    Floats<kWidth> to_a, to_b;
    for (int k = 0; k < kWidth; ++k) {
      to_a.v[k] = gradient[k] * other[k];
      to_b.v[k] = gradient[k] * one[k];
    }
    StoreOrAdd(da, i, to_a, accumulate_a);
    StoreOrAdd(db, i, to_b, accumulate_b);
  }
};

struct CopyRowsFunction {
  ConstElements from;
  int64_t from_stride;
  Elements to;
  int64_t to_stride;
  int64_t length;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t row = Quotient(i, length);
    const int64_t column = i - row * length;
    const Pack<kWidth> pack = Load<kWidth>(from, row * from_stride + column);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = pack[k];
    StoreOrAdd(to, row * to_stride + column, floats, accumulate);
  }
};

struct DropoutFunction {
  ConstElements x;
  Elements y;
  int64_t first;
  uint64_t seed;
  uint32_t layer;
  float ratio;
  float scale;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t element = first + i;  // a multiple of kWidth unless kWidth is 1
    const Pack<kWidth> pack = Load<kWidth>(x, i);
    Floats<kWidth> floats;
    Philox4 random;
    for (int k = 0; k < kWidth; ++k) {
      if (k % 4 == 0) random = PhiloxGroup(seed, layer, (element + k) / 4);
      const bool keep = UnitFloat(random.word[(element + k) % 4]) >= ratio;
      floats.v[k] = keep ? pack[k] * scale : 0;
    }
    StoreOrAdd(y, i, floats, accumulate);
  }
};

struct SgdFunction {
  Elements weight;
  ConstElements gradient;
  Elements momentum;
  float learning_rate, momentum_factor, weight_decay;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> w = Load<kWidth>(weight, i);
    const Pack<kWidth> m = Load<kWidth>(momentum, i);
    const Pack<kWidth> g = Load<kWidth>(gradient, i);
    Floats<kWidth> next_w, next_m;
    for (int k = 0; k < kWidth; ++k) {
      next_m.v[k] = momentum_factor * m[k] + (g[k] + weight_decay * w[k]);
      next_w.v[k] = w[k] - learning_rate * next_m.v[k];
    }
    Store(momentum, i, next_m);
    Store(weight, i, next_w);
  }
};

__global__ void CompareKernel(ConstElements a, ConstElements b, int64_t count, Comparison* result) {
  float largest = 0;
  float difference = 0;
  bool finite = true;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float value = LoadOne(a, i);
    finite = finite && isfinite(value);
    largest = fmaxf(largest, fabsf(value));
    if (b.data != nullptr) difference = fmaxf(difference, fabsf(value - LoadOne(b, i)));
  }
  largest = BlockReduce<Max>(largest);
  difference = BlockReduce<Max>(difference);
  const bool all_finite = __syncthreads_and(finite);
  if (threadIdx.x != 0) return;
  // The bits of non-negative floats have the same order as the floats.
  atomicMax(&result->largest_bits, __float_as_uint(largest));
  atomicMax(&result->difference_bits, __float_as_uint(difference));
  if (!all_finite) atomicMax(&result->not_finite, 1u);
}

__device__ int64_t Nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds) {
  const int64_t start = Nanoseconds();
  while (Nanoseconds() - start < nanoseconds) {
  }
}

// Each thread walks over the channels at one place of one sample. It reads dy only ahead of the
// channels that it has overwritten. Rings hold `scale` and dy * y / scale of the channels behind.
__global__ void LrnBackwardInPlaceKernel(const float* x, const float* y, float* dy, int64_t places,
                                         int channels, int64_t plane, int size, float alpha,
                                         float beta, float k) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (place >= places) return;
  const int64_t first = place / plane * channels * plane + place % plane;
  const int before = (size - 1) / 2;
  const int after = size - 1 - before;
  const float share = alpha / static_cast<float>(size);
  float scales[kLargestLrnWindow];
  float ratios[kLargestLrnWindow];
  for (int head = 0; head < channels + before; ++head) {
    if (head < channels) {
      float scale = k;
      for (int c = max(head - before, 0); c <= min(head + after, channels - 1); ++c) {
        const float value = x[first + c * plane];
        scale += share * value * value;
      }
      const int64_t i = first + head * plane;
      scales[head % size] = scale;
      ratios[head % size] = dy[i] * y[i] / scale;
    }
    const int c = head - before;
    if (c < 0) continue;
    float sum = 0;
    for (int j = max(c - after, 0); j <= min(head, channels - 1); ++j) sum += ratios[j % size];
    const int64_t i = first + c * plane;
    dy[i] = dy[i] * powf(scales[c % size], -beta) - 2 * share * beta * x[i] * sum;
  }
}

}  // namespace

void FillUniform(Elements out, int64_t count, uint64_t seed, float scale, cudaStream_t stream,
                 float centre, int64_t first) {
  ForEach(count, {out}, true, FillUniformFunction{out, seed, scale, centre, first}, stream);
}

void FillLabels(int32_t* out, int64_t count, int32_t classes, uint64_t seed, cudaStream_t stream) {
  ForEach(count, {}, false, FillLabelsFunction{out, seed, classes}, stream);
}

void Activate(std::string_view type, ConstElements x, Elements y, int64_t count,
              cudaStream_t stream) {
  WithActivation(type, [&](auto activation) {
    ForEach(count, {x, y}, true, ActivationFunction<decltype(activation)>{x, y}, stream);
  });
}

void ActivateBackward(std::string_view type, ConstElements saved, ConstElements dy, Elements dx,
                      int64_t count, bool accumulate, cudaStream_t stream) {
  WithActivation(type, [&](auto activation) {
    ForEach(count, {saved, dy, dx}, true,
            ActivationBackwardFunction<decltype(activation)>{saved, dy, dx, accumulate}, stream);
  });
}

void AddTensors(ConstElements a, ConstElements b, Elements y, int64_t count, cudaStream_t stream) {
  ForEach(count, {a, b, y}, true, AddFunction{a, b, y}, stream);
}

void MultiplyTensors(ConstElements a, ConstElements b, Elements y, int64_t count,
                     cudaStream_t stream) {
  ForEach(count, {a, b, y}, true, MultiplyFunction{a, b, y}, stream);
}

void MultiplyBackward(ConstElements a, ConstElements b, ConstElements dy, Elements da, Elements db,
                      int64_t count, bool accumulate_a, bool accumulate_b, cudaStream_t stream) {
  ForEach(count, {a, b, dy, da, db}, true,
          MultiplyBackwardFunction{a, b, dy, da, db, accumulate_a, accumulate_b}, stream);
}

void CopyRows(ConstElements from, int64_t from_stride, Elements to, int64_t to_stride,
              int64_t length, int64_t rows, bool accumulate, cudaStream_t stream) {
  const int64_t count = rows * length;
  const int64_t width = from.bf16 || to.bf16 ? 8 : 4;
  const bool wide = length % width == 0 && from_stride % width == 0 && to_stride % width == 0;
  ForEach(count, {from, to}, wide,
          CopyRowsFunction{from, from_stride, to, to_stride, length, accumulate}, stream);
}

void Dropout(ConstElements x, Elements y, int64_t count, int64_t first, uint64_t seed,
             uint32_t layer, float ratio, bool accumulate, cudaStream_t stream) {
  ForEach(count, {x, y}, first % 8 == 0,
          DropoutFunction{x, y, first, seed, layer, ratio, 1 / (1 - ratio), accumulate}, stream);
}

void LrnBackwardInPlace(const float* x, const float* y, float* dy, int64_t batch, int channels,
                        int64_t plane, int size, float alpha, float beta, float k,
                        cudaStream_t stream) {
  const int64_t places = batch * plane;
  if (places <= 0) return;
  LrnBackwardInPlaceKernel<<<BlockCount(places), kThreads, 0, stream>>>(
      x, y, dy, places, channels, plane, size, alpha, beta, k);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SgdMomentum(Elements weight, ConstElements gradient, Elements momentum, int64_t count,
                 float learning_rate, float momentum_factor, float weight_decay,
                 cudaStream_t stream) {
  ForEach(count, {weight, gradient, momentum}, true,
          SgdFunction{weight, gradient, momentum, learning_rate, momentum_factor, weight_decay},
          stream);
}

void Compare(ConstElements a, ConstElements b, int64_t count, Comparison* result,
             cudaStream_t stream) {
  SPILLWAY_CUDA_CALL(cudaMemsetAsync(result, 0, sizeof(Comparison), stream));
  if (count <= 0) return;
  const unsigned blocks = BlockCount(count) < 4096 ? BlockCount(count) : 4096;
  CompareKernel<<<blocks, kThreads, 0, stream>>>(a, b, count, result);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void Spin(int64_t nanoseconds, cudaStream_t stream) {
  SpinKernel<<<1, 1, 0, stream>>>(nanoseconds);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway::cuda
