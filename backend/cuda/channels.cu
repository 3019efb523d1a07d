#include "backend/cuda/channels.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_elements.h"

namespace spillway::cuda {
namespace {

// One block sums a channel, which keeps the order of the sum.
constexpr int kThreadsOfChannel = 512;

// Calls function.Do<kWidth>(channel) in each block, which has a channel of its own.
template <int kWidth, typename Function>
__global__ void __launch_bounds__(kThreadsOfChannel) EachChannelKernel(Function function) {
  function.template Do<kWidth>(int64_t{blockIdx.x});
}

// Calls `function` for all channels. It reads four elements of `arrays` at a time where they lie so
// that it can.
template <typename Function>
void ForEachChannel(const ChannelShape& shape, std::initializer_list<ConstElements> arrays,
                    const Function& function, cudaStream_t stream) {
  if (shape.channels <= 0) return;
  const auto blocks = static_cast<unsigned>(shape.channels);
  if (shape.plane % 4 == 0 && Aligned(arrays)) {
    EachChannelKernel<4><<<blocks, kThreadsOfChannel, 0, stream>>>(function);
  } else {
    EachChannelKernel<1><<<blocks, kThreadsOfChannel, 0, stream>>>(function);
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

// Calls visit(i) for every kWidth-th element i of a channel, shared out among the block's threads.
template <int kWidth, typename Visit>
__device__ void ForEachElement(const ChannelShape& s, int64_t channel, const Visit& visit) {
#pragma unroll 4
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < s.batch * s.plane;
       i += kThreadsOfChannel * kWidth) {
    const int64_t sample = Quotient(i, s.plane);
    visit((sample * s.channels + channel) * s.plane + (i - sample * s.plane));
  }
}

struct BiasGradientFunction {
  ChannelShape shape;
  ConstElements dy;
  Elements db;
  GradientScale scale;

  template <int kWidth>
  __device__ void Do(int64_t channel) const {
    float sum = 0;
    ForEachElement<kWidth>(shape, channel, [&](int64_t i) {
      const Pack<kWidth> pack = Load<kWidth>(dy, i);
      for (int k = 0; k < kWidth; ++k) sum += pack[k];
    });
    sum = scale.alpha * BlockReduce<Sum>(sum);
    if (threadIdx.x != 0) return;
    // The old value may be undefined if it does not count.
    if (scale.beta != 0) sum += scale.beta * LoadOne(db, channel);
    StoreOne(db, channel, sum);
  }
};

struct StatisticsFunction {
  ChannelShape shape;
  ConstElements x;
  float epsilon;
  float* mean;
  float* inv_std;

  template <int kWidth>
  __device__ void Do(int64_t channel) const {
    const float count = static_cast<float>(shape.batch * shape.plane);
    float sum = 0;
    ForEachElement<kWidth>(shape, channel, [&](int64_t i) {
      const Pack<kWidth> pack = Load<kWidth>(x, i);
      for (int k = 0; k < kWidth; ++k) sum += pack[k];
    });
    const float centre = BlockReduce<Sum>(sum) / count;
    float squares = 0;
    ForEachElement<kWidth>(shape, channel, [&](int64_t i) {
      const Pack<kWidth> pack = Load<kWidth>(x, i);
      for (int k = 0; k < kWidth; ++k) squares += (pack[k] - centre) * (pack[k] - centre);
    });
    squares = BlockReduce<Sum>(squares);
    if (threadIdx.x != 0) return;
    mean[channel] = centre;
    inv_std[channel] = 1 / sqrtf(squares / count + epsilon);
  }
};

struct ParameterGradientsFunction {
  ChannelShape shape;
  ConstElements x;
  ConstElements dy;
  const float* mean;
  const float* inv_std;
  float* dweight;
  float* dbias;

  template <int kWidth>
  __device__ void Do(int64_t channel) const {
    const float centre = mean[channel], factor = inv_std[channel];
    float sum = 0;
    float product = 0;
    ForEachElement<kWidth>(shape, channel, [&](int64_t i) {
      const Pack<kWidth> value = Load<kWidth>(x, i);
      const Pack<kWidth> gradient = Load<kWidth>(dy, i);
      for (int k = 0; k < kWidth; ++k) {
        sum += gradient[k];
        product += gradient[k] * (value[k] - centre) * factor;
      }
    });
    sum = BlockReduce<Sum>(sum);
    product = BlockReduce<Sum>(product);
    if (threadIdx.x != 0) return;
    dbias[channel] = sum;
    dweight[channel] = product;
  }
};

// Calls visit(k, channel) with the channel of each of the elements [i, i + kWidth).
template <int kWidth, typename Visit>
__device__ void WithChannels(const ChannelShape& s, int64_t i, const Visit& visit) {
  const auto channel_of = [&](int64_t element) {
    const int64_t planes = Quotient(element, s.plane);
    return planes - Quotient(planes, s.channels) * s.channels;
  };
  const bool one = s.plane % kWidth == 0;
  int64_t channel = channel_of(i);
  for (int k = 0; k < kWidth; ++k) {
    if (k > 0 && !one) channel = channel_of(i + k);
    visit(k, channel);
  }
}

struct AddBiasFunction {
  ChannelShape shape;
  ConstElements bias;
  Elements y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> pack = Load<kWidth>(y, i);
    Floats<kWidth> floats;
    WithChannels<kWidth>(
        shape, i, [&](int k, int64_t channel) { floats.v[k] = pack[k] + LoadOne(bias, channel); });
    Store(y, i, floats);
  }
};

struct NormalizeFunction {
  ChannelShape shape;
  ConstElements x;
  const float* weight;
  const float* bias;
  ChannelStatistics statistics;
  Elements y;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const Pack<kWidth> pack = Load<kWidth>(x, i);
    Floats<kWidth> floats;
    WithChannels<kWidth>(shape, i, [&](int k, int64_t channel) {
      float inv_std = statistics.deviation[channel];
      if (statistics.is_variance) inv_std = 1 / sqrtf(inv_std + statistics.epsilon);
      floats.v[k] =
          (pack[k] - statistics.mean[channel]) * inv_std * weight[channel] + bias[channel];
    });
    Store(y, i, floats);
  }
};

struct InputGradientFunction {
  ChannelShape shape;
  ConstElements x;
  const float* weight;
  ConstElements dy;
  const float* mean;
  const float* inv_std;
  const float* dweight;
  const float* dbias;
  Elements dx;
  bool accumulate;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const float share = 1 / static_cast<float>(shape.batch * shape.plane);
    const Pack<kWidth> value = Load<kWidth>(x, i);
    const Pack<kWidth> gradient = Load<kWidth>(dy, i);
    Floats<kWidth> floats;
    WithChannels<kWidth>(shape, i, [&](int k, int64_t channel) {
      const float normal = (value[k] - mean[channel]) * inv_std[channel];
      floats.v[k] = weight[channel] * inv_std[channel] *
                    (gradient[k] - share * (dbias[channel] + normal * dweight[channel]));
    });
    StoreOrAdd(dx, i, floats, accumulate);
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

}  // namespace

void AddChannelBias(const ChannelShape& shape, ConstElements bias, Elements y,
                    cudaStream_t stream) {
  ForEach(shape.elements(), {y}, true, AddBiasFunction{shape, bias, y}, stream);
}

void ChannelBiasGradient(const ChannelShape& shape, ConstElements dy, Elements db,
                         GradientScale scale, cudaStream_t stream) {
  ForEachChannel(shape, {dy}, BiasGradientFunction{shape, dy, db, scale}, stream);
}

void BatchStatistics(const ChannelShape& shape, ConstElements x, float epsilon, float* mean,
                     float* inv_std, cudaStream_t stream) {
  ForEachChannel(shape, {x}, StatisticsFunction{shape, x, epsilon, mean, inv_std}, stream);
}

void BatchNormalize(const ChannelShape& shape, ConstElements x, const float* weight,
                    const float* bias, const ChannelStatistics& statistics, Elements y,
                    cudaStream_t stream) {
  ForEach(shape.elements(), {x, y}, true, NormalizeFunction{shape, x, weight, bias, statistics, y},
          stream);
}

void BatchNormParameterGradients(const ChannelShape& shape, ConstElements x, ConstElements dy,
                                 const float* mean, const float* inv_std, float* dweight,
                                 float* dbias, cudaStream_t stream) {
  ForEachChannel(shape, {x, dy},
                 ParameterGradientsFunction{shape, x, dy, mean, inv_std, dweight, dbias}, stream);
}

void BatchNormInputGradient(const ChannelShape& shape, ConstElements x, const float* weight,
                            ConstElements dy, const float* mean, const float* inv_std,
                            const float* dweight, const float* dbias, Elements dx, bool accumulate,
                            cudaStream_t stream) {
  ForEach(
      shape.elements(), {x, dy, dx}, true,
      InputGradientFunction{shape, x, weight, dy, mean, inv_std, dweight, dbias, dx, accumulate},
      stream);
}

void MoveRunningStatistics(const ChannelShape& shape, const float* mean, const float* inv_std,
                           float* running_mean, float* running_var, float epsilon, float momentum,
                           cudaStream_t stream) {
  const int64_t count = shape.batch * shape.plane;
  const float unbiased =
      count > 1 ? static_cast<float>(count) / static_cast<float>(count - 1) : 1.0f;
  ForEach(
      shape.channels, {}, false,
      MoveStatisticsFunction{mean, inv_std, running_mean, running_var, epsilon, momentum, unbiased},
      stream);
}

}  // namespace spillway::cuda
