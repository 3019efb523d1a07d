#include "backend/cuda/elementwise.h"

#include <cfloat>
#include <initializer_list>

#include "backend/cuda/cuda_error.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

constexpr int kThreads = 256;

// `kWidth` consecutive floats that one instruction moves.
template <int kWidth>
struct alignas(sizeof(float) * kWidth) Pack {
  float v[kWidth];
};

template <int kWidth>
__device__ Pack<kWidth> Load(const float* from, int64_t i) {
  return *reinterpret_cast<const Pack<kWidth>*>(from + i);
}

template <int kWidth>
__device__ void Store(float* to, int64_t i, const Pack<kWidth>& pack) {
  *reinterpret_cast<Pack<kWidth>*>(to + i) = pack;
}

template <int kWidth>
__device__ void StoreOrAdd(float* to, int64_t i, Pack<kWidth> pack, bool accumulate) {
  if (accumulate) {
    const Pack<kWidth> old = Load<kWidth>(to, i);
    for (int k = 0; k < kWidth; ++k) pack.v[k] += old.v[k];
  }
  Store(to, i, pack);
}

// Calls function.Do<kWidth>(i) for every kWidth-th i in [0, count), and Do<1> for the remaining
// elements.
template <int kWidth, typename Function>
__global__ void ForEachKernel(int64_t count, Function function) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  if (i + kWidth <= count) {
    function.template Do<kWidth>(i);
  } else {
    for (int64_t j = i; j < count; ++j) function.template Do<1>(j);
  }
}

bool Aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignof(Pack<4>) != 0) return false;
  }
  return true;
}

unsigned BlockCount(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// Calls `function` for all elements, four at a time if `wide`.
template <typename Function>
void ForEach(int64_t count, bool wide, const Function& function, cudaStream_t stream) {
  if (count <= 0) return;
  if (wide) {
    ForEachKernel<4><<<BlockCount((count + 3) / 4), kThreads, 0, stream>>>(count, function);
  } else {
    ForEachKernel<1><<<BlockCount(count), kThreads, 0, stream>>>(count, function);
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

struct FillUniformFunction {
  float* out;
  uint64_t seed;
  float scale, centre;
  int64_t first;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    Pack<kWidth> pack;
    for (int k = 0; k < kWidth; ++k) {
      // The sum is rounded separately, as on the host. A fused multiply-add would round
      // differently.
      pack.v[k] = __fadd_rn(centre, RandomFloat(seed, first + i + k, scale));
    }
    Store(out, i, pack);
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

// Calls run(activation) with the activation of the op type. REQUIRES: the op type is an activation.
template <typename Run>
void WithActivation(std::string_view type, const Run& run) {
  if (type == "relu") return run(ReluActivation());
  if (type == "gelu") return run(GeluActivation());
  SPILLWAY_CHECK(false);
}

template <typename Activation>
struct ActivationFunction {
  const float* x;
  float* y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    Pack<kWidth> pack = Load<kWidth>(x, i);
    for (int k = 0; k < kWidth; ++k) pack.v[k] = Activation::Value(pack.v[k]);
    Store(y, i, pack);
  }
};

template <typename Activation>
struct ActivationBackwardFunction {
  const float* saved;
  const float* dy;
  float* dx;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> value = Load<kWidth>(saved, i);
    Pack<kWidth> pack = Load<kWidth>(dy, i);
    for (int k = 0; k < kWidth; ++k) pack.v[k] = Activation::Gradient(value.v[k], pack.v[k]);
    StoreOrAdd(dx, i, pack, accumulate);
  }
};

struct AddFunction {
  const float* a;
  const float* b;
  float* y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    Pack<kWidth> pack = Load<kWidth>(a, i);
    const Pack<kWidth> other = Load<kWidth>(b, i);
    for (int k = 0; k < kWidth; ++k) pack.v[k] += other.v[k];
    Store(y, i, pack);
  }
};

struct CopyRowsFunction {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  int64_t length;
  bool small;  // indices fit in 32 bits, which makes division much cheaper
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t row =
        small ? static_cast<uint32_t>(i) / static_cast<uint32_t>(length) : i / length;
    const int64_t column = i - row * length;
    StoreOrAdd(to, row * to_stride + column, Load<kWidth>(from, row * from_stride + column),
               accumulate);
  }
};

struct DropoutFunction {
  const float* x;
  float* y;
  int64_t first;
  uint64_t seed;
  uint32_t layer;
  float ratio;
  float scale;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t element = first + i;  // a multiple of kWidth
    const Philox4 random = PhiloxGroup(seed, layer, element / 4);
    Pack<kWidth> pack = Load<kWidth>(x, i);
    for (int k = 0; k < kWidth; ++k) {
      const bool keep = UnitFloat(random.word[(element + k) % 4]) >= ratio;
      pack.v[k] = keep ? pack.v[k] * scale : 0;
    }
    StoreOrAdd(y, i, pack, accumulate);
  }
};

struct SgdFunction {
  float* weight;
  const float* gradient;
  float* momentum;
  float learning_rate, momentum_factor, weight_decay;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    Pack<kWidth> w = Load<kWidth>(weight, i);
    Pack<kWidth> m = Load<kWidth>(momentum, i);
    const Pack<kWidth> g = Load<kWidth>(gradient, i);
    for (int k = 0; k < kWidth; ++k) {
      m.v[k] = momentum_factor * m.v[k] + (g.v[k] + weight_decay * w.v[k]);
      w.v[k] -= learning_rate * m.v[k];
    }
    Store(momentum, i, m);
    Store(weight, i, w);
  }
};

struct MoveStatisticsFunction {
  const float* mean;
  const float* inv_std;
  float* running_mean;
  float* running_var;
  float epsilon, momentum, unbiased;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const float deviation = 1 / inv_std[i];
    const float variance = (deviation * deviation - epsilon) * unbiased;
    running_mean[i] += momentum * (mean[i] - running_mean[i]);
    running_var[i] += momentum * (variance - running_var[i]);
  }
};

struct SoftmaxBackwardFunction {
  const float* y;
  const int32_t* labels;
  float* dx;
  int64_t classes;
  float scale;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t row = i / classes;
    const float target = i - row * classes == labels[row] ? 1.0f : 0.0f;
    dx[i] = scale * (y[i] - target);
  }
};

struct Max {
  __device__ static float Join(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  __device__ static float Join(float a, float b) { return a + b; }
};

// Returns to every thread the reduction over the block's kThreads values. The order is a fixed
// tree, so the result is deterministic.
template <typename Operation>
__device__ float BlockReduce(float value) {
  __shared__ float shared[kThreads];
  __syncthreads();  // waits until the previous use of `shared` is over
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] = Operation::Join(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return shared[0];
}

__global__ void SoftmaxKernel(const float* x, float* y, int64_t classes) {
  const float* in = x + blockIdx.x * classes;
  float* out = y + blockIdx.x * classes;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) largest = fmaxf(largest, in[i]);
  largest = BlockReduce<Max>(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) sum += expf(in[i] - largest);
  sum = BlockReduce<Sum>(sum);
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) out[i] = expf(in[i] - largest) / sum;
}

__global__ void CrossEntropyKernel(const float* y, const int32_t* labels, float* loss, int64_t rows,
                                   int64_t classes, float scale, bool accumulate) {
  float sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) {
    sum -= logf(fmaxf(y[row * classes + labels[row]], FLT_MIN));
  }
  sum = BlockReduce<Sum>(sum);
  if (threadIdx.x == 0) *loss = (accumulate ? *loss : 0.0f) + scale * sum;
}

// Each block computes the gradients of one channel.
__global__ void ParameterGradientsKernel(const float* x, const float* dy, const float* mean,
                                         const float* inv_std, float* dweight, float* dbias,
                                         int64_t batch, int64_t plane) {
  const int64_t channel = blockIdx.x;
  float sum = 0;
  float product = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const int64_t first = (n * gridDim.x + channel) * plane;
    for (int64_t i = first + threadIdx.x; i < first + plane; i += kThreads) {
      sum += dy[i];
      product += dy[i] * (x[i] - mean[channel]) * inv_std[channel];
    }
  }
  sum = BlockReduce<Sum>(sum);
  product = BlockReduce<Sum>(product);
  if (threadIdx.x != 0) return;
  dbias[channel] = sum;
  dweight[channel] = product;
}

__global__ void CompareKernel(const float* a, const float* b, int64_t count, Comparison* result) {
  float largest = 0;
  float difference = 0;
  bool finite = true;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    finite = finite && isfinite(a[i]);
    largest = fmaxf(largest, fabsf(a[i]));
    if (b != nullptr) difference = fmaxf(difference, fabsf(a[i] - b[i]));
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

void FillUniform(float* out, int64_t count, uint64_t seed, float scale, cudaStream_t stream,
                 float centre, int64_t first) {
  ForEach(count, Aligned({out}), FillUniformFunction{out, seed, scale, centre, first}, stream);
}

void FillLabels(int32_t* out, int64_t count, int32_t classes, uint64_t seed, cudaStream_t stream) {
  ForEach(count, false, FillLabelsFunction{out, seed, classes}, stream);
}

void Activate(std::string_view type, const float* x, float* y, int64_t count, cudaStream_t stream) {
  WithActivation(type, [&](auto activation) {
    ForEach(count, Aligned({x, y}), ActivationFunction<decltype(activation)>{x, y}, stream);
  });
}

void ActivateBackward(std::string_view type, const float* saved, const float* dy, float* dx,
                      int64_t count, bool accumulate, cudaStream_t stream) {
  WithActivation(type, [&](auto activation) {
    ForEach(count, Aligned({saved, dy, dx}),
            ActivationBackwardFunction<decltype(activation)>{saved, dy, dx, accumulate}, stream);
  });
}

void AddTensors(const float* a, const float* b, float* y, int64_t count, cudaStream_t stream) {
  ForEach(count, Aligned({a, b, y}), AddFunction{a, b, y}, stream);
}

void CopyRows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t length,
              int64_t rows, bool accumulate, cudaStream_t stream) {
  const int64_t count = rows * length;
  const bool wide =
      Aligned({from, to}) && length % 4 == 0 && from_stride % 4 == 0 && to_stride % 4 == 0;
  const bool small = count <= INT64_C(0xffffffff);
  ForEach(count, wide,
          CopyRowsFunction{from, from_stride, to, to_stride, length, small, accumulate}, stream);
}

void Dropout(const float* x, float* y, int64_t count, int64_t first, uint64_t seed, uint32_t layer,
             float ratio, bool accumulate, cudaStream_t stream) {
  const bool wide = Aligned({x, y}) && first % 4 == 0;
  ForEach(count, wide,
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

void Softmax(const float* x, float* y, int64_t rows, int64_t classes, cudaStream_t stream) {
  if (rows <= 0) return;
  SoftmaxKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, y, classes);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void CrossEntropy(const float* y, const int32_t* labels, float* loss, int64_t rows, int64_t classes,
                  float scale, bool accumulate, cudaStream_t stream) {
  CrossEntropyKernel<<<1, kThreads, 0, stream>>>(y, labels, loss, rows, classes, scale, accumulate);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SoftmaxCrossEntropyBackward(const float* y, const int32_t* labels, float* dx, int64_t rows,
                                 int64_t classes, float scale, cudaStream_t stream) {
  ForEach(rows * classes, false, SoftmaxBackwardFunction{y, labels, dx, classes, scale}, stream);
}

void SgdMomentum(float* weight, const float* gradient, float* momentum, int64_t count,
                 float learning_rate, float momentum_factor, float weight_decay,
                 cudaStream_t stream) {
  ForEach(count, Aligned({weight, gradient, momentum}),
          SgdFunction{weight, gradient, momentum, learning_rate, momentum_factor, weight_decay},
          stream);
}

void BatchNormParameterGradients(const float* x, const float* dy, const float* mean,
                                 const float* inv_std, float* dweight, float* dbias, int64_t batch,
                                 int64_t channels, int64_t plane, cudaStream_t stream) {
  if (channels <= 0) return;
  ParameterGradientsKernel<<<static_cast<unsigned>(channels), kThreads, 0, stream>>>(
      x, dy, mean, inv_std, dweight, dbias, batch, plane);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void MoveRunningStatistics(const float* mean, const float* inv_std, float* running_mean,
                           float* running_var, int64_t channels, int64_t count, float epsilon,
                           float momentum, cudaStream_t stream) {
  const float unbiased =
      count > 1 ? static_cast<float>(count) / static_cast<float>(count - 1) : 1.0f;
  ForEach(
      channels, false,
      MoveStatisticsFunction{mean, inv_std, running_mean, running_var, epsilon, momentum, unbiased},
      stream);
}

void Compare(const float* a, const float* b, int64_t count, Comparison* result,
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

}  // namespace spillway
