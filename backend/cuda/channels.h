// Kernels on NCHW tensors that work by channel: the bias of convolutions, and batch normalisation,
// where cuDNN does not take the types.
//
// Tensors are dense, on the device, and float or bfloat16, each by itself; the statistics and
// parameters of a normalisation are floats. Sums are floats, added in a fixed order, so results are
// deterministic. No operand may alias another.

#ifndef SPILLWAY_BACKEND_CUDA_CHANNELS_H_
#define SPILLWAY_BACKEND_CUDA_CHANNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/elements.h"
#include "backend/cuda/sequence_kernels.h"

namespace spillway::cuda {

struct ChannelShape {
  int64_t batch = 0, channels = 0;
  int64_t plane = 0;  // elements of one channel of one sample

  int64_t elements() const { return batch * channels * plane; }
};

// The statistics of each channel. `deviation` is 1 / sqrt(variance + epsilon), or the variance
// itself if `is_variance`.
struct ChannelStatistics {
  const float* mean = nullptr;
  const float* deviation = nullptr;
  bool is_variance = false;
  float epsilon = 0;
};

// Computes y[n, c, :] += bias[c].
void AddChannelBias(const ChannelShape& shape, ConstElements bias, Elements y, cudaStream_t stream);
// Computes db[c] = scale.alpha * (sum of dy[:, c, :]) + scale.beta * db[c].
void ChannelBiasGradient(const ChannelShape& shape, ConstElements dy, Elements db,
                         GradientScale scale, cudaStream_t stream);

// Computes the mean of each channel and inv_std = 1 / sqrt(biased variance + epsilon).
void BatchStatistics(const ChannelShape& shape, ConstElements x, float epsilon, float* mean,
                     float* inv_std, cudaStream_t stream);
void BatchNormalize(const ChannelShape& shape, ConstElements x, const float* weight,
                    const float* bias, const ChannelStatistics& statistics, Elements y,
                    cudaStream_t stream);
// Computes the parameter gradients of a batch normalisation: dbias = sum of dy, dweight = sum of dy
// * (x - mean) * inv_std.
void BatchNormParameterGradients(const ChannelShape& shape, ConstElements x, ConstElements dy,
                                 const float* mean, const float* inv_std, float* dweight,
                                 float* dbias, cudaStream_t stream);
// Computes the gradient of x from the parameter gradients.
void BatchNormInputGradient(const ChannelShape& shape, ConstElements x, const float* weight,
                            ConstElements dy, const float* mean, const float* inv_std,
                            const float* dweight, const float* dbias, Elements dx, bool accumulate,
                            cudaStream_t stream);
// Computes running = running + momentum * (statistic - running) for the mean and the unbiased
// variance of the channels.
void MoveRunningStatistics(const ChannelShape& shape, const float* mean, const float* inv_std,
                           float* running_mean, float* running_var, float epsilon, float momentum,
                           cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CHANNELS_H_
