// cuDNN behind plain types: convolutions, bias, local response and batch normalisation.
//
// The only file of the project that includes cuDNN is dnn_library.cc; it uses the v7-style
// convolution calls, which name their algorithms and workspaces, as the papers do. Dense NCHW fp32;
// all pointers are device pointers and calls enqueue on the stream set last. Failures throw, see
// cuda_error.h.

#ifndef SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_
#define SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_

#include <compare>
#include <memory>
#include <optional>
#include <string>

#include "backend/cuda/conv_algorithm.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"

namespace spillway {

struct ConvDescription {
  int batch = 0;
  int in_channels = 0, in_height = 0, in_width = 0;
  int out_channels = 0, out_height = 0, out_width = 0;
  int kernel_h = 0, kernel_w = 0;
  int stride_h = 0, stride_w = 0;
  int pad_h = 0, pad_w = 0;
  int groups = 1;

  auto operator<=>(const ConvDescription&) const = default;
};

// Cross-channel normalisation, y = x / (k + alpha / size * sum of squares)^beta: alpha is divided
// by the window size, as in Caffe and PyTorch.
struct LrnShape {
  int batch = 0;
  int channels = 0, height = 0, width = 0;
  int size = 0;
  double alpha = 0, beta = 0, k = 0;
};

// Normalisation per channel, over the samples and the plane.
struct BatchNormGeometry {
  int batch = 0;
  int channels = 0, height = 0, width = 0;
  double epsilon = 0;
};

class DnnLibrary {
 public:
  // Opens cuDNN on the current device. `tf32` allows tensor cores with rounded inputs.
  explicit DnnLibrary(bool tf32);
  ~DnnLibrary();
  DnnLibrary(const DnnLibrary&) = delete;
  DnnLibrary& operator=(const DnnLibrary&) = delete;

  // "9.14.0".
  static std::string Version();

  void SetStream(cudaStream_t stream);

  // Workspace that the algorithm needs, or nullopt if cuDNN does not support it for this shape.
  // Throws `InputError` if the output extents are not those that cuDNN computes.
  std::optional<Bytes> ConvWorkspace(ConvStep step, const ConvDescription& shape, int algorithm,
                                     const Activity& activity);

  // out = alpha * step(a, b) + beta * out, where a, b and out are x, weight, y (kForward),
  // weight, dy, dx (kBackwardData) or x, dy, dweight (kBackwardFilter).
  void Convolve(ConvStep step, const ConvDescription& shape, int algorithm, float alpha,
                const float* a, const float* b, float beta, float* out,
                const DeviceRange& workspace, const Activity& activity);

  // y[n, c, :] += bias[c], planes of `plane` elements.
  void AddBias(int batch, int channels, int plane, const float* bias, float* y,
               const Activity& activity);
  // db[c] = alpha * sum of dy[:, c, :] + beta * db[c].
  void BiasGradient(int batch, int channels, int plane, float alpha, const float* dy, float beta,
                    float* db, const Activity& activity);

  void Lrn(const LrnShape& shape, const float* x, float* y, const Activity& activity);
  // dx = gradient + beta * dx.
  void LrnBackward(const LrnShape& shape, const float* x, const float* y, const float* dy,
                   float beta, float* dx, const Activity& activity);

  // The statistics are those of x; puts them out, inv_std = 1 / sqrt(biased variance + epsilon).
  void BatchNormTraining(const BatchNormGeometry& shape, const float* x, const float* weight,
                         const float* bias, float* y, float* mean, float* inv_std,
                         const Activity& activity);
  void BatchNormInference(const BatchNormGeometry& shape, const float* x, const float* weight,
                          const float* bias, const float* mean, const float* variance, float* y,
                          const Activity& activity);
  // dx = gradient + beta * dx. dweight and dbias are overwritten and must not be weight or bias.
  void BatchNormBackward(const BatchNormGeometry& shape, const float* x, const float* weight,
                         const float* dy, const float* mean, const float* inv_std, float beta,
                         float* dx, float* dweight, float* dbias, const Activity& activity);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_DNN_LIBRARY_H_
