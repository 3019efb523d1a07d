#include "backend/cuda/dnn_library.h"

#include <cudnn.h>
#include <fmt/format.h>

#include <map>

#include "backend/cuda/cudnn_error.h"
#include "traces/base/error.h"

// The v7-style interface is deprecated in cuDNN 9 but still complete.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace spillway::cuda {
namespace {

// The numbers in conv_algorithm.cc are the values of this header's enumerators.
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED == 7);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_COUNT == 8);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED == 5);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT == 6);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING == 6);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT == 7);

// A cuDNN descriptor that is destroyed with its owner.
template <typename T, cudnnStatus_t (*kCreate)(T*), cudnnStatus_t (*kDestroy)(T)>
class Descriptor {
 public:
  Descriptor() { SPILLWAY_CUDNN_CALL(kCreate(&value_)); }
  ~Descriptor() { kDestroy(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};
using TensorDescriptor =
    Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvDescriptor = Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
                                  cudnnDestroyConvolutionDescriptor>;
using LrnDescriptor =
    Descriptor<cudnnLRNDescriptor_t, cudnnCreateLRNDescriptor, cudnnDestroyLRNDescriptor>;

void SetTensor(const TensorDescriptor& tensor, int n, int c, int h, int w, const Activity& activity,
               cudnnDataType_t type = CUDNN_DATA_FLOAT) {
  SPILLWAY_CUDNN_CALL(cudnnSetTensor4dDescriptor(tensor.get(), CUDNN_TENSOR_NCHW, type, n, c, h, w),
                      activity);
}

// The descriptors of one convolution shape.
struct ConvDescriptors {
  TensorDescriptor x;
  TensorDescriptor y;
  FilterDescriptor weight;
  ConvDescriptor conv;

  ConvDescriptors(const ConvDescription& s, bool tf32, const Activity& activity) {
    const cudnnDataType_t type = s.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    SetTensor(x, s.batch, s.in_channels, s.in_height, s.in_width, activity, type);
    SetTensor(y, s.batch, s.out_channels, s.out_height, s.out_width, activity, type);
    SPILLWAY_CUDNN_CALL(
        cudnnSetFilter4dDescriptor(weight.get(), type, CUDNN_TENSOR_NCHW, s.out_channels,
                                   s.in_channels / s.groups, s.kernel_h, s.kernel_w),
        activity);
    SPILLWAY_CUDNN_CALL(
        cudnnSetConvolution2dDescriptor(conv.get(), s.pad_h, s.pad_w, s.stride_h, s.stride_w, 1, 1,
                                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        activity);
    SPILLWAY_CUDNN_CALL(cudnnSetConvolutionGroupCount(conv.get(), s.groups), activity);
    const cudnnMathType_t fp32_math = tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    SPILLWAY_CUDNN_CALL(
        cudnnSetConvolutionMathType(conv.get(), s.bf16 ? CUDNN_TENSOR_OP_MATH : fp32_math),
        activity);
    CheckOutput(s, activity);
  }

 private:
  void CheckOutput(const ConvDescription& s, const Activity& activity) const {
    int n = 0, c = 0, h = 0, w = 0;
    SPILLWAY_CUDNN_CALL(
        cudnnGetConvolution2dForwardOutputDim(conv.get(), x.get(), weight.get(), &n, &c, &h, &w),
        activity);
    if (h == s.out_height && w == s.out_width) return;
    throw InputError(fmt::format("{}: the output is {}x{} but this convolution makes {}x{}",
                                 Describe(activity), s.out_height, s.out_width, h, w));
  }
};

}  // namespace

struct DnnLibrary::Impl {
  explicit Impl(bool use_tf32) : tf32(use_tf32) { SPILLWAY_CUDNN_CALL(cudnnCreate(&handle)); }
  ~Impl() { cudnnDestroy(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const ConvDescriptors& Conv(const ConvDescription& shape, const Activity& activity) {
    std::unique_ptr<ConvDescriptors>& entry = convolutions[shape];
    if (!entry) entry = std::make_unique<ConvDescriptors>(shape, tf32, activity);
    return *entry;
  }

  void SetLrn(const LrnShape& s, const Activity& activity) {
    SetTensor(tensor, s.batch, s.channels, s.height, s.width, activity);
    SPILLWAY_CUDNN_CALL(
        cudnnSetLRNDescriptor(lrn.get(), static_cast<unsigned>(s.size), s.alpha, s.beta, s.k),
        activity);
  }

  void SetBatchNorm(const BatchNormGeometry& s, const Activity& activity) {
    SetTensor(tensor, s.batch, s.channels, s.height, s.width, activity);
    SPILLWAY_CUDNN_CALL(
        cudnnDeriveBNTensorDescriptor(channel.get(), tensor.get(), CUDNN_BATCHNORM_SPATIAL),
        activity);
  }

  cudnnHandle_t handle = nullptr;
  bool tf32 = false;
  std::map<ConvDescription, std::unique_ptr<ConvDescriptors>> convolutions;
  // Each use sets these descriptors first.
  TensorDescriptor tensor;
  TensorDescriptor bias;
  TensorDescriptor channel;
  LrnDescriptor lrn;
};

DnnLibrary::DnnLibrary(bool tf32) : impl_(std::make_unique<Impl>(tf32)) {}
DnnLibrary::~DnnLibrary() = default;

std::string DnnLibrary::Version() { return CudnnVersion(); }

void DnnLibrary::SetStream(cudaStream_t stream) {
  SPILLWAY_CUDNN_CALL(cudnnSetStream(impl_->handle, stream));
}

std::optional<Bytes> DnnLibrary::ConvWorkspace(ConvStep step, const ConvDescription& shape,
                                               int algorithm, const Activity& activity) {
  const ConvDescriptors& d = impl_->Conv(shape, activity);
  const cudnnHandle_t handle = impl_->handle;
  size_t size = 0;
  cudnnStatus_t code = CUDNN_STATUS_SUCCESS;
  switch (step) {
    case ConvStep::kForward:
      code = cudnnGetConvolutionForwardWorkspaceSize(
          handle, d.x.get(), d.weight.get(), d.conv.get(), d.y.get(),
          static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &size);
      break;
    case ConvStep::kBackwardData:
      code = cudnnGetConvolutionBackwardDataWorkspaceSize(
          handle, d.weight.get(), d.y.get(), d.conv.get(), d.x.get(),
          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), &size);
      break;
    case ConvStep::kBackwardFilter:
      code = cudnnGetConvolutionBackwardFilterWorkspaceSize(
          handle, d.x.get(), d.y.get(), d.conv.get(), d.weight.get(),
          static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), &size);
      break;
  }
  if (IsDeclined(code)) return std::nullopt;
  CheckCudnn(code, "cudnnGetConvolution*WorkspaceSize", activity);
  return Bytes(static_cast<int64_t>(size));
}

void DnnLibrary::Convolve(ConvStep step, const ConvDescription& shape, int algorithm, float alpha,
                          const void* a, const void* b, float beta, void* out,
                          const DeviceRange& workspace, const Activity& activity) {
  const ConvDescriptors& d = impl_->Conv(shape, activity);
  const cudnnHandle_t handle = impl_->handle;
  const auto size = static_cast<size_t>(workspace.size.count());
  switch (step) {
    case ConvStep::kForward:
      SPILLWAY_CUDNN_CALL(
          cudnnConvolutionForward(handle, &alpha, d.x.get(), a, d.weight.get(), b, d.conv.get(),
                                  static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), workspace.data,
                                  size, &beta, d.y.get(), out),
          activity);
      break;
    case ConvStep::kBackwardData:
      SPILLWAY_CUDNN_CALL(cudnnConvolutionBackwardData(
                              handle, &alpha, d.weight.get(), a, d.y.get(), b, d.conv.get(),
                              static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), workspace.data,
                              size, &beta, d.x.get(), out),
                          activity);
      break;
    case ConvStep::kBackwardFilter:
      SPILLWAY_CUDNN_CALL(
          cudnnConvolutionBackwardFilter(handle, &alpha, d.x.get(), a, d.y.get(), b, d.conv.get(),
                                         static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm),
                                         workspace.data, size, &beta, d.weight.get(), out),
          activity);
      break;
  }
}

void DnnLibrary::AddBias(int batch, int channels, int plane, const float* bias, float* y,
                         const Activity& activity) {
  const float one = 1;
  SetTensor(impl_->tensor, batch, channels, plane, 1, activity);
  SetTensor(impl_->bias, 1, channels, 1, 1, activity);
  SPILLWAY_CUDNN_CALL(
      cudnnAddTensor(impl_->handle, &one, impl_->bias.get(), bias, &one, impl_->tensor.get(), y),
      activity);
}

void DnnLibrary::BiasGradient(int batch, int channels, int plane, float alpha, const float* dy,
                              float beta, float* db, const Activity& activity) {
  SetTensor(impl_->tensor, batch, channels, plane, 1, activity);
  SetTensor(impl_->bias, 1, channels, 1, 1, activity);
  SPILLWAY_CUDNN_CALL(cudnnConvolutionBackwardBias(impl_->handle, &alpha, impl_->tensor.get(), dy,
                                                   &beta, impl_->bias.get(), db),
                      activity);
}

void DnnLibrary::Lrn(const LrnShape& shape, const float* x, float* y, const Activity& activity) {
  const float one = 1;
  const float zero = 0;
  impl_->SetLrn(shape, activity);
  SPILLWAY_CUDNN_CALL(
      cudnnLRNCrossChannelForward(impl_->handle, impl_->lrn.get(), CUDNN_LRN_CROSS_CHANNEL_DIM1,
                                  &one, impl_->tensor.get(), x, &zero, impl_->tensor.get(), y),
      activity);
}

void DnnLibrary::LrnBackward(const LrnShape& shape, const float* x, const float* y, const float* dy,
                             float beta, float* dx, const Activity& activity) {
  const float one = 1;
  impl_->SetLrn(shape, activity);
  const cudnnTensorDescriptor_t tensor = impl_->tensor.get();
  SPILLWAY_CUDNN_CALL(
      cudnnLRNCrossChannelBackward(impl_->handle, impl_->lrn.get(), CUDNN_LRN_CROSS_CHANNEL_DIM1,
                                   &one, tensor, y, tensor, dy, tensor, x, &beta, tensor, dx),
      activity);
}

void DnnLibrary::BatchNormTraining(const BatchNormGeometry& shape, const float* x,
                                   const float* weight, const float* bias, float* y, float* mean,
                                   float* inv_std, const Activity& activity) {
  const float one = 1;
  const float zero = 0;
  impl_->SetBatchNorm(shape, activity);
  const cudnnTensorDescriptor_t tensor = impl_->tensor.get();
  SPILLWAY_CUDNN_CALL(
      cudnnBatchNormalizationForwardTraining(
          impl_->handle, CUDNN_BATCHNORM_SPATIAL, &one, &zero, tensor, x, tensor, y,
          impl_->channel.get(), weight, bias, 1, nullptr, nullptr, shape.epsilon, mean, inv_std),
      activity);
}

void DnnLibrary::BatchNormInference(const BatchNormGeometry& shape, const float* x,
                                    const float* weight, const float* bias, const float* mean,
                                    const float* variance, float* y, const Activity& activity) {
  const float one = 1;
  const float zero = 0;
  impl_->SetBatchNorm(shape, activity);
  const cudnnTensorDescriptor_t tensor = impl_->tensor.get();
  SPILLWAY_CUDNN_CALL(cudnnBatchNormalizationForwardInference(
                          impl_->handle, CUDNN_BATCHNORM_SPATIAL, &one, &zero, tensor, x, tensor, y,
                          impl_->channel.get(), weight, bias, mean, variance, shape.epsilon),
                      activity);
}

void DnnLibrary::BatchNormBackward(const BatchNormGeometry& shape, const float* x,
                                   const float* weight, const float* dy, const float* mean,
                                   const float* inv_std, float beta, float* dx, float* dweight,
                                   float* dbias, const Activity& activity) {
  const float one = 1;
  const float zero = 0;
  impl_->SetBatchNorm(shape, activity);
  const cudnnTensorDescriptor_t tensor = impl_->tensor.get();
  SPILLWAY_CUDNN_CALL(cudnnBatchNormalizationBackward(impl_->handle, CUDNN_BATCHNORM_SPATIAL, &one,
                                                      &beta, &one, &zero, tensor, x, tensor, dy,
                                                      tensor, dx, impl_->channel.get(), weight,
                                                      dweight, dbias, shape.epsilon, mean, inv_std),
                      activity);
}

}  // namespace spillway::cuda
