// cuDNN behind plain types: convolutions, bias, local response normalisation and batch
// normalisation.
//
// Only dnn_library.cc and attention_library.cc include cuDNN. This library uses the v7-style
// convolution calls, which name their algorithms and workspaces, as the papers do. Tensors are
// dense NCHW fp32, and those of a convolution may be bfloat16; sums are fp32 for both. All pointers
// are device pointers, and calls enqueue on the stream that was set last. Failures throw
// (cuda_error.h).

#ifndef SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_
#define SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_

#include <compare>
#include <memory>
#include <optional>
#include <string>

#include "backend/cuda/conv_algorithm.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"

namespace spillway::cuda {

struct ConvDescription {
  int batch = 0;
  int in_channels = 0, in_height = 0, in_width = 0;
  int out_channels = 0, out_height = 0, out_width = 0;
  int kernel_h = 0, kernel_w = 0;
  int stride_h = 0, stride_w = 0;
  int pad_h = 0, pad_w = 0;
  int groups = 1;
  bool bf16 = false;  // x, y and weight are bfloat16; otherwise they are fp32

  auto operator<=>(const ConvDescription&) const = default;
};

// The shape of a cross-channel normalisation, y = x / (k + alpha / size * sum of squares)^beta.
// Alpha is divided by the window size, as in Caffe and PyTorch.
struct LrnShape {
  int batch = 0;
  int channels = 0, height = 0, width = 0;
  int size = 0;
  double alpha = 0, beta = 0, k = 0;
};

// The shape of a normalisation per channel, over the samples and the plane.
struct BatchNormGeometry {
  int batch = 0;
  int channels = 0, height = 0, width = 0;
  double epsilon = 0;
};

class DnnLibrary {
 public:
  // Opens cuDNN on the current device. `tf32` allows tensor cores, which round their inputs.
  explicit DnnLibrary(bool tf32);
  ~DnnLibrary();
  DnnLibrary(const DnnLibrary&) = delete;
  DnnLibrary& operator=(const DnnLibrary&) = delete;

  // Returns for example "9.14.0".
  static std::string Version();

  void SetStream(cudaStream_t stream);

  // Returns the workspace that the algorithm needs, or nullopt if cuDNN does not support it for
  // this shape. Throws `InputError` if the output extents differ from the extents that cuDNN
  // computes.
  std::optional<Bytes> ConvWorkspace(ConvStep step, const ConvDescription& shape, int algorithm,
                                     const Activity& activity);

  // Computes out = alpha * step(a, b) + beta * out. (a, b, out) is (x, weight, y) for kForward,
  // (weight, dy, dx) for kBackwardData, and (x, dy, dweight) for kBackwardFilter.
  void Convolve(ConvStep step, const ConvDescription& shape, int algorithm, float alpha,
                const void* a, const void* b, float beta, void* out, const DeviceRange& workspace,
                const Activity& activity);

  // Computes y[n, c, :] += bias[c]. Each plane has `plane` elements.
  void AddBias(int batch, int channels, int plane, const float* bias, float* y,
               const Activity& activity);
  // Computes db[c] = alpha * sum of dy[:, c, :] + beta * db[c].
  void BiasGradient(int batch, int channels, int plane, float alpha, const float* dy, float beta,
                    float* db, const Activity& activity);

  void Lrn(const LrnShape& shape, const float* x, float* y, const Activity& activity);
  // Computes dx = gradient + beta * dx.
  void LrnBackward(const LrnShape& shape, const float* x, const float* y, const float* dy,
                   float beta, float* dx, const Activity& activity);

  // Normalises with the statistics of x and writes them to `mean` and `inv_std`, where inv_std = 1
  // / sqrt(biased variance + epsilon).
  void BatchNormTraining(const BatchNormGeometry& shape, const float* x, const float* weight,
                         const float* bias, float* y, float* mean, float* inv_std,
                         const Activity& activity);
  void BatchNormInference(const BatchNormGeometry& shape, const float* x, const float* weight,
                          const float* bias, const float* mean, const float* variance, float* y,
                          const Activity& activity);
  // Computes dx = gradient + beta * dx. Overwrites dweight and dbias, which must not be weight or
  // bias.
  void BatchNormBackward(const BatchNormGeometry& shape, const float* x, const float* weight,
                         const float* dy, const float* mean, const float* inv_std, float beta,
                         float* dx, float* dweight, float* dbias, const Activity& activity);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_
