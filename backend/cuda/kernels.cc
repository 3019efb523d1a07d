#include "backend/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "backend/cuda/channels.h"
#include "backend/cuda/conv_algorithm.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/dnn_library.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/fused_attention.h"
#include "backend/cuda/pooling.h"
#include "backend/cuda/products.h"
#include "backend/cuda/sequence_ops.h"
#include "backend/cuda/slot_operands.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kElementSize = sizeof(float);
// The memory for partial sums, 16 MiB.
constexpr int64_t kScratchFloats = int64_t{1} << 22;
// The most channels that a batch normalisation with a fused update can have.
constexpr int64_t kMostChannels = 65536;

using enum Role;

int IntOf(const Op& op, std::string_view attribute) {
  return static_cast<int>(op.IntAttribute(attribute, 0));
}

float FloatOf(const Op& op, std::string_view attribute) {
  return static_cast<float>(op.NumberAttribute(attribute));
}

ConvDescription ConvShapeOf(const Op& op, int64_t batch, bool bf16) {
  const auto get = [&](std::string_view attribute) { return IntOf(op, attribute); };
  ConvDescription shape;
  shape.batch = static_cast<int>(batch);
  shape.in_channels = get("in_channels");
  shape.in_height = get("in_height");
  shape.in_width = get("in_width");
  shape.out_channels = get("out_channels");
  shape.out_height = get("out_height");
  shape.out_width = get("out_width");
  shape.kernel_h = get("kernel_h");
  shape.kernel_w = get("kernel_w");
  shape.stride_h = get("stride_h");
  shape.stride_w = get("stride_w");
  shape.pad_h = get("pad_h");
  shape.pad_w = get("pad_w");
  shape.groups = get("groups");
  shape.bf16 = bf16;
  if (shape.groups < 1 || shape.in_channels % shape.groups != 0 ||
      shape.out_channels % shape.groups != 0) {
    throw InputError(fmt::format("op '{}': {} groups do not divide {} and {} channels", op.name,
                                 shape.groups, shape.in_channels, shape.out_channels));
  }
  return shape;
}

// Throws `InputError` if the elements of some arrays are bfloat16 and others are float32.
void RequireOneType(const Op& op, std::initializer_list<ConstElements> arrays) {
  for (const ConstElements& array : arrays) {
    if (array.bf16 == arrays.begin()->bf16) continue;
    throw InputError(
        fmt::format("op '{}': the CUDA backend executes {} ops only if the tensors are all float32 "
                    "or all bfloat16",
                    op.name, Name(op.type)));
  }
}

bool ParseTf32(const std::string& math) {
  if (math != "fp32" && math != "tf32") {
    throw UsageError(UnknownName("math", math, {"fp32", "tf32"}));
  }
  return math == "tf32";
}

}  // namespace

struct CudaKernels::Impl {
  explicit Impl(const KernelOptions& options)
      : seed(options.seed),
        tf32(ParseTf32(options.math)),
        dnn(tf32),
        products(tf32),
        parameter_gradients(Bytes(2 * kMostChannels * kElementSize)),
        partial_sums(Bytes(kScratchFloats * kElementSize)) {
    SPILLWAY_CUBLAS_CALL(cublasCreate(&blas));
    SPILLWAY_CUBLAS_CALL(
        cublasSetMathMode(blas, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));
  }
  ~Impl() {
    if (blas != nullptr) cublasDestroy(blas);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void UseStream(cudaStream_t next) {
    if (stream_set && next == stream) return;
    dnn.SetStream(next);
    products.SetStream(next);
    attention.SetStream(next);
    SPILLWAY_CUBLAS_CALL(cublasSetStream(blas, next));
    stream = next;
    stream_set = true;
  }

  void Convolution(const Op& op, const SlotLaunch& launch, const Operands& operands,
                   const Activity& activity);
  // Add the bias of a convolution to y, or write its gradient.
  void AddBias(const ConvDescription& shape, const ConstElements& bias, const Elements& y,
               const Activity& activity);
  void BiasGradient(const ConvDescription& shape, const ConstElements& dy, const Elements& db,
                    const GradientScale& scale, const Activity& activity);
  void Linear(const Op& op, const SlotLaunch& launch, const Operands& operands,
              const Activity& activity);
  // Computes c = alpha * a * b + beta * c on column-major matrices.
  void Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a,
            int lda, const float* b, int ldb, float beta, float* c, int ldc,
            const Activity& activity);
  void Pooling(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Normalise(const Op& op, const SlotLaunch& launch, const Operands& operands,
                 const Activity& activity);
  void BatchNorm(const Op& op, const SlotLaunch& launch, const Operands& operands,
                 const Activity& activity);
  void BatchNormBackward(const Op& op, const BatchNormGeometry& shape, const Operands& operands,
                         const Activity& activity);
  void Pointwise(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Fork(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Concatenate(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void GatherRows(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Multiply(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Sgd(const Op& op, const SlotLaunch& launch, const Operands& operands);

  uint64_t seed;
  bool tf32;
  DnnLibrary dnn;
  Products products;
  FusedAttention attention;
  SpareWorkspace spare;
  // Receives the parameter gradients of a batch normalisation with a fused update: cuDNN still
  // reads the weight to which they are added.
  DeviceBuffer parameter_gradients;
  DeviceBuffer partial_sums;
  cublasHandle_t blas = nullptr;
  cudaStream_t stream = nullptr;
  bool stream_set = false;
};

void CudaKernels::Impl::Convolution(const Op& op, const SlotLaunch& launch,
                                    const Operands& operands, const Activity& activity) {
  const ConvStep step = ParseConvStep(op.slots[launch.slot].name);
  const ConvDescription s =
      ConvShapeOf(op, launch.batch, operands.ReadShared(kWeight, /*elements=*/0).bf16);
  const int algorithm = FindConvAlgorithm(step, launch.algorithm).value;
  const int64_t in = int64_t{s.in_channels} * s.in_height * s.in_width;
  const int64_t out = int64_t{s.out_channels} * s.out_height * s.out_width;
  const int64_t weights =
      int64_t{s.out_channels} * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
  const auto convolve = [&](float alpha, const ConstElements& a, const ConstElements& b, float beta,
                            const Elements& to) {
    RequireOneType(op, {a, b, to});
    dnn.Convolve(step, s, algorithm, alpha, a.data, b.data, beta, to.data, launch.workspace,
                 activity);
  };
  switch (step) {
    case ConvStep::kForward: {
      const Elements y = operands.Write(kY, out);
      convolve(1, operands.Read(kX, in), operands.ReadShared(kWeight, weights),
               op.Accumulates(0) ? 1.0f : 0.0f, y);
      if (op.Flag("bias")) AddBias(s, operands.ReadShared(kBias, s.out_channels), y, activity);
      return;
    }
    case ConvStep::kBackwardData:
      convolve(1, operands.ReadShared(kWeight, weights), operands.Read(kDy, out),
               op.Accumulates(0) ? 1.0f : 0.0f, operands.Write(kDx, in));
      return;
    case ConvStep::kBackwardFilter: {
      const GradientScale scale = ParameterScale(op, launch, kDweight);
      const ConstElements dy = operands.Read(kDy, out);
      convolve(scale.alpha, operands.Read(kX, in), dy, scale.beta,
               operands.WriteShared(kDweight, weights));
      if (op.Flag("bias")) {
        BiasGradient(s, dy, operands.WriteShared(kDbias, s.out_channels), scale, activity);
      }
      return;
    }
  }
}

// cuDNN adds biases, and sums their gradients, in fp32 only.
void CudaKernels::Impl::AddBias(const ConvDescription& s, const ConstElements& bias,
                                const Elements& y, const Activity& activity) {
  const int plane = s.out_height * s.out_width;
  if (s.bf16) return AddChannelBias({s.batch, s.out_channels, plane}, bias, y, stream);
  dnn.AddBias(s.batch, s.out_channels, plane, static_cast<const float*>(bias.data),
              static_cast<float*>(y.data), activity);
}

void CudaKernels::Impl::BiasGradient(const ConvDescription& s, const ConstElements& dy,
                                     const Elements& db, const GradientScale& scale,
                                     const Activity& activity) {
  const int plane = s.out_height * s.out_width;
  if (s.bf16) return ChannelBiasGradient({s.batch, s.out_channels, plane}, dy, db, scale, stream);
  dnn.BiasGradient(s.batch, s.out_channels, plane, scale.alpha, static_cast<const float*>(dy.data),
                   scale.beta, static_cast<float*>(db.data), activity);
}

void CudaKernels::Impl::Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha,
                             const float* a, int lda, const float* b, int ldb, float beta, float* c,
                             int ldc, const Activity& activity) {
  SPILLWAY_CUBLAS_CALL(cublasSgemm(blas, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                   transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha, a, lda,
                                   b, ldb, &beta, c, ldc),
                       activity);
}

// The row-major x[n][in], weight[out][in] and y[n][out] are the column-major in x n, in x out and
// out x n.
void CudaKernels::Impl::Linear(const Op& op, const SlotLaunch& launch, const Operands& operands,
                               const Activity& activity) {
  const int in = IntOf(op, "in_features");
  const int out = IntOf(op, "out_features");
  const auto n = static_cast<int>(launch.batch);
  const bool bias = op.Flag("bias");
  const float* x = operands.Input(kX, in);
  const float* weight = operands.SharedInput(kWeight, int64_t{in} * out);
  if (op.phase == Phase::kForward) {
    float* y = operands.Output(kY, out);
    Gemm(true, false, out, n, in, 1, weight, in, x, in, 0, y, out, activity);
    if (bias) dnn.AddBias(n, out, 1, operands.SharedInput(kBias, out), y, activity);
    return;
  }
  const float* dy = operands.Input(kDy, out);
  if (op.Flag("needs_dx")) {
    Gemm(false, false, in, n, out, 1, weight, in, dy, out, op.Accumulates(0) ? 1.0f : 0.0f,
         operands.Output(kDx, in), in, activity);
  }
  const GradientScale scale = ParameterScale(op, launch, kDweight);
  Gemm(false, true, in, out, n, scale.alpha, x, in, dy, out, scale.beta,
       operands.SharedOutput(kDweight, int64_t{in} * out), in, activity);
  if (bias) {
    dnn.BiasGradient(n, out, 1, scale.alpha, dy, scale.beta, operands.SharedOutput(kDbias, out),
                     activity);
  }
}

void CudaKernels::Impl::Pooling(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const auto get = [&](std::string_view attribute) { return IntOf(op, attribute); };
  const int64_t channels = get("channels");
  PoolShape s;
  s.planes = launch.batch * channels;
  s.in_height = get("in_height");
  s.in_width = get("in_width");
  s.out_height = get("out_height");
  s.out_width = get("out_width");
  s.kernel_h = get("kernel_h");
  s.kernel_w = get("kernel_w");
  s.stride_h = get("stride_h");
  s.stride_w = get("stride_w");
  s.pad_h = get("pad_h");
  s.pad_w = get("pad_w");
  if (s.stride_h < 1 || s.stride_w < 1 || s.kernel_h < 1 || s.kernel_w < 1) {
    throw InputError(fmt::format("op '{}': kernel and stride must be at least 1", op.name));
  }
  const int64_t in = channels * s.in_height * s.in_width;
  const int64_t out = channels * s.out_height * s.out_width;
  const bool max = op.type == OpType::kMaxPool2d;
  if (op.phase == Phase::kForward) {
    const ConstElements x = operands.Read(kX, in);
    const Elements y = operands.Write(kY, out);
    RequireOneType(op, {x, y});
    return (max ? MaxPool : AveragePool)(s, x, y, stream);
  }
  const ConstElements dy = operands.Read(kDy, out);
  const Elements dx = operands.Write(kDx, in);
  RequireOneType(op, {dy, dx});
  if (!max) return AveragePoolBackward(s, dy, dx, op.Accumulates(0), stream);
  const ConstElements x = operands.Read(kX, in), y = operands.Read(kY, out);
  RequireOneType(op, {dx, x, y});
  MaxPoolBackward(s, x, y, dy, dx, op.Accumulates(0), stream);
}

void CudaKernels::Impl::Normalise(const Op& op, const SlotLaunch& launch, const Operands& operands,
                                  const Activity& activity) {
  LrnShape s;
  s.batch = static_cast<int>(launch.batch);
  s.channels = IntOf(op, "channels");
  s.height = IntOf(op, "height");
  s.width = IntOf(op, "width");
  s.size = IntOf(op, "size");
  s.alpha = FloatOf(op, "alpha");
  s.beta = FloatOf(op, "beta");
  s.k = FloatOf(op, "k");
  const int64_t elements = int64_t{s.channels} * s.height * s.width;
  if (op.phase == Phase::kForward) {
    dnn.Lrn(s, operands.Input(kX, elements), operands.Output(kY, elements), activity);
    return;
  }
  const float* x = operands.Input(kX, elements);
  const float* y = operands.Input(kY, elements);
  const float* dy = operands.Input(kDy, elements);
  float* dx = operands.Output(kDx, elements);
  if (dx != dy) {
    dnn.LrnBackward(s, x, y, dy, op.Accumulates(0) ? 1.0f : 0.0f, dx, activity);
    return;
  }
  // cuDNN may read dy of neighbouring channels after it has written dx, so the in-place step needs
  // another kernel.
  if (s.size < 1 || s.size > kLargestLrnWindow) {
    throw InputError(fmt::format("op '{}': backward in place needs a window of 1 to {} channels",
                                 op.name, kLargestLrnWindow));
  }
  LrnBackwardInPlace(x, y, dx, launch.batch, s.channels, int64_t{s.height} * s.width, s.size,
                     static_cast<float>(s.alpha), static_cast<float>(s.beta),
                     static_cast<float>(s.k), stream);
}

void CudaKernels::Impl::BatchNorm(const Op& op, const SlotLaunch& launch, const Operands& operands,
                                  const Activity& activity) {
  BatchNormGeometry s;
  s.batch = static_cast<int>(launch.batch);
  s.channels = IntOf(op, "channels");
  s.height = IntOf(op, "height");
  s.width = IntOf(op, "width");
  s.epsilon = op.NumberAttribute("epsilon");
  if (op.phase == Phase::kBackward) return BatchNormBackward(op, s, operands, activity);
  const int64_t elements = int64_t{s.channels} * s.height * s.width;
  const ConstElements x = operands.Read(kX, elements);
  const float* weight = operands.SharedInput(kWeight, s.channels);
  const float* bias = operands.SharedInput(kBias, s.channels);
  const Elements y = operands.Write(kY, elements);
  const bool training = op.Flag("training"), by_cudnn = !x.bf16 && !y.bf16;
  const auto* const x_floats = static_cast<const float*>(x.data);
  auto* const y_floats = static_cast<float*>(y.data);
  const ChannelShape shape{s.batch, s.channels, int64_t{s.height} * s.width};
  const auto epsilon = static_cast<float>(s.epsilon);
  if (training) {
    float* const mean = operands.SharedOutput(kMean, s.channels);
    float* const inv_std = operands.SharedOutput(kInvStd, s.channels);
    if (by_cudnn) {
      return dnn.BatchNormTraining(s, x_floats, weight, bias, y_floats, mean, inv_std, activity);
    }
    BatchStatistics(shape, x, epsilon, mean, inv_std, stream);
    BatchNormalize(shape, x, weight, bias, {mean, inv_std}, y, stream);
  } else {
    const float* const mean = operands.SharedInput(kRunningMean, s.channels);
    const float* const variance = operands.SharedInput(kRunningVar, s.channels);
    if (by_cudnn) {
      return dnn.BatchNormInference(s, x_floats, weight, bias, mean, variance, y_floats, activity);
    }
    BatchNormalize(shape, x, weight, bias, {mean, variance, true, epsilon}, y, stream);
  }
}

void CudaKernels::Impl::BatchNormBackward(const Op& op, const BatchNormGeometry& shape,
                                          const Operands& operands, const Activity& activity) {
  const int64_t channels = shape.channels;
  const int64_t plane = int64_t{shape.height} * shape.width;
  const bool fused = op.Flag("fused_update");
  const bool apart = fused || op.Accumulates(OutputIndex(op, kDweight).value());
  if (apart && channels > kMostChannels) {
    throw InputError(
        fmt::format("op '{}': {} channels with a fused update or an accumulated gradient, at most "
                    "{} are possible",
                    op.name, channels, kMostChannels));
  }
  const ChannelShape extents{shape.batch, channels, plane};
  const ConstElements x = operands.Read(kX, channels * plane);
  const float* weight = operands.SharedInput(kWeight, channels);
  const ConstElements dy = operands.Read(kDy, channels * plane);
  const float* mean = operands.SharedInput(kMean, channels);
  const float* inv_std = operands.SharedInput(kInvStd, channels);
  float* const weight_out = operands.SharedOutput(kDweight, channels);
  float* const bias_out = operands.SharedOutput(kDbias, channels);
  float* dweight = apart ? parameter_gradients.floats() : weight_out;
  float* dbias = apart ? parameter_gradients.floats() + kMostChannels : bias_out;
  Elements dx;
  if (op.Flag("needs_dx")) dx = operands.Write(kDx, channels * plane);
  if (dx.data != nullptr && !x.bf16 && !dy.bf16 && !dx.bf16) {
    dnn.BatchNormBackward(shape, static_cast<const float*>(x.data), weight,
                          static_cast<const float*>(dy.data), mean, inv_std,
                          op.Accumulates(0) ? 1.0f : 0.0f, static_cast<float*>(dx.data), dweight,
                          dbias, activity);
  } else {
    BatchNormParameterGradients(extents, x, dy, mean, inv_std, dweight, dbias, stream);
    if (dx.data != nullptr) {
      BatchNormInputGradient(extents, x, weight, dy, mean, inv_std, dweight, dbias, dx,
                             op.Accumulates(0), stream);
    }
  }
  if (apart) {
    const float scale = fused ? -FloatOf(op, "learning_rate") : 1;
    const auto n = static_cast<int>(channels);
    SPILLWAY_CUBLAS_CALL(cublasSaxpy(blas, n, &scale, dweight, 1, weight_out, 1), activity);
    SPILLWAY_CUBLAS_CALL(cublasSaxpy(blas, n, &scale, dbias, 1, bias_out, 1), activity);
  }
  MoveRunningStatistics(extents, mean, inv_std, operands.SharedOutput(kRunningMean, channels),
                        operands.SharedOutput(kRunningVar, channels), FloatOf(op, "epsilon"),
                        FloatOf(op, "momentum"), stream);
}

// Executes activations, dropout and add.
void CudaKernels::Impl::Pointwise(const Op& op, const SlotLaunch& launch,
                                  const Operands& operands) {
  const int64_t elements = op.IntAttribute("elements");
  const int64_t count = launch.batch * elements;
  const bool forward = op.phase == Phase::kForward;
  const ConstElements in = operands.Read(forward ? kX : kDy, elements);
  const Elements out = operands.Write(forward ? kY : kDx, elements);
  const bool accumulate = !forward && op.Accumulates(0);
  if (op.type == OpType::kDropout) {
    Dropout(in, out, count, launch.first * elements, seed, static_cast<uint32_t>(op.layer),
            FloatOf(op, "ratio"), accumulate, stream);
  } else if (op.type != OpType::kAdd && forward) {
    Activate(Name(op.type), in, out, count, stream);
  } else if (op.type != OpType::kAdd) {
    const ConstElements saved = operands.Read(InputIndex(op, kY) ? kY : kX, elements);
    ActivateBackward(Name(op.type), saved, in, out, count, accumulate, stream);
  } else if (forward) {
    AddTensors(in, operands.Read(kX, elements, 1), out, count, stream);
  } else {
    for (size_t i = 0; i < launch.outputs.size(); ++i) {
      const Elements dx = operands.Write(kDx, elements, i);
      const bool adds = op.Accumulates(i);
      if (dx.data == in.data && !adds) continue;  // in place, so dx already holds the gradient
      CopyRows(in, count, dx, count, count, 1, adds, stream);
    }
  }
}

void CudaKernels::Impl::Fork(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const int64_t elements = op.IntAttribute("elements");
  const int64_t count = launch.batch * elements;
  const auto parts = static_cast<size_t>(IntOf(op, "parts"));
  if (op.phase == Phase::kForward) {
    const ConstElements x = operands.Read(kX, elements);
    for (size_t i = 0; i < parts; ++i) {
      const Elements y = operands.Write(kY, elements, i);
      if (y.data != x.data) CopyRows(x, count, y, count, count, 1, false, stream);
    }
    return;
  }
  const Elements dx = operands.Write(kDx, elements);
  const bool accumulate = op.Accumulates(0);
  for (size_t i = 0; i < parts; ++i) {
    const ConstElements dy = operands.Read(kDy, elements, i);
    if (i == 0 && !accumulate) {
      if (dy.data != dx.data) CopyRows(dy, count, dx, count, count, 1, false, stream);
    } else {
      AddTensors(dx, dy, dx, count, stream);
    }
  }
}

void CudaKernels::Impl::Concatenate(const Op& op, const SlotLaunch& launch,
                                    const Operands& operands) {
  const int64_t parts = op.IntAttribute("parts");
  const int64_t plane = op.IntAttribute("height") * op.IntAttribute("width");
  std::vector<int64_t> lengths;
  int64_t total = 0;
  for (int64_t i = 0; i < parts; ++i) {
    lengths.push_back(op.IntAttribute(fmt::format("channels_{}", i)) * plane);
    total += lengths.back();
  }
  const bool forward = op.phase == Phase::kForward;
  int64_t offset = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i];
    if (forward) {
      CopyRows(operands.Read(kX, length, i), length, operands.Write(kY, total) + offset, total,
               length, launch.batch, false, stream);
    } else {
      CopyRows(operands.Read(kDy, total) + offset, total, operands.Write(kDx, length, i), length,
               length, launch.batch, op.Accumulates(i), stream);
    }
    offset += length;
  }
}

void CudaKernels::Impl::GatherRows(const Op& op, const SlotLaunch& launch,
                                   const Operands& operands) {
  const int64_t channels = op.IntAttribute("channels");
  const int64_t width = op.IntAttribute("width");
  const int64_t height = op.IntAttribute("height");
  float* y = operands.Output(kY, channels * height * width);
  const float fill = op.Flag("lowest") ? std::numeric_limits<float>::lowest() : 0.0f;
  FillUniform(y, launch.batch * channels * height * width, /*seed=*/0, /*scale=*/0, stream, fill);
  int64_t begin = -op.IntAttribute("first_row");  // the row of y of the part's first row
  for (int64_t part = 0; part < op.IntAttribute("parts"); ++part) {
    const int64_t rows = op.IntAttribute(fmt::format("height_{}", part));
    const float* x = operands.Input(kX, channels * rows * width, static_cast<size_t>(part));
    const int64_t from = std::clamp<int64_t>(begin, 0, height);
    const int64_t to = std::clamp<int64_t>(begin + rows, from, height);
    if (from < to) {
      CopyRows(x + (from - begin) * width, rows * width, y + from * width, height * width,
               (to - from) * width, launch.batch * channels, false, stream);
    }
    begin += rows;
  }
}

void CudaKernels::Impl::Multiply(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const int64_t elements = op.IntAttribute("elements");
  const int64_t count = launch.batch * elements;
  const ConstElements a = operands.Read(kX, elements), b = operands.Read(kX2, elements);
  if (op.phase == Phase::kForward) {
    MultiplyTensors(a, b, operands.Write(kY, elements), count, stream);
  } else {
    MultiplyBackward(a, b, operands.Read(kDy, elements), operands.Write(kDx, elements),
                     operands.Write(kDx2, elements), count, op.Accumulates(0), op.Accumulates(1),
                     stream);
  }
}

void CudaKernels::Impl::Sgd(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const std::vector<int64_t> sizes = ParameterSizes(op, launch);
  for (size_t i = 0; i < sizes.size(); ++i) {
    SgdMomentum(
        operands.WriteShared(kParameter, sizes[i], i), operands.ReadShared(kGradient, sizes[i], i),
        operands.WriteShared(kMomentum, sizes[i], i), sizes[i], FloatOf(op, "learning_rate"),
        FloatOf(op, "momentum"), FloatOf(op, "weight_decay"), stream);
  }
}

CudaKernels::CudaKernels(const KernelOptions& options) {
  RequireDevice(0);  // its message is plainer than the libraries' messages
  impl_ = std::make_unique<Impl>(options);
}
CudaKernels::~CudaKernels() = default;

// Returns true if the algorithm is too inaccurate for a convolution of this shape. cuDNN's Winograd
// transforms for filters larger than 3x3 lose three decimal digits (1e-3 to 2e-2 of the largest
// element, measured with cuDNN 9.14). Algorithms that add by atomics round each sum to the type of
// the result, which is too coarse in bfloat16 (more than 1.5e-2, measured with cuDNN 9.19).
static bool IsInaccurate(const ConvAlgorithm& algorithm, const ConvDescription& shape) {
  if (shape.bf16 && !algorithm.deterministic) return true;
  return algorithm.name == "winograd_nonfused" && std::max(shape.kernel_h, shape.kernel_w) > 3;
}

std::vector<Candidate> CudaKernels::Candidates(const Op& op, size_t slot, int64_t batch,
                                               const OperandTypes& types) {
  SPILLWAY_CHECK(slot < op.slots.size());
  RequireExecutableOnGpu(op);
  if (Products::Has(op)) return impl_->products.Candidates(op, slot, batch, types);
  if (op.type == OpType::kAttention) return impl_->attention.Candidates(op, slot, batch, types);
  if (!RowOf(op.type).algorithms) return {{"default", Bytes(0), RowOf(op.type).deterministic}};
  const ConvStep step = ParseConvStep(op.slots[slot].name);
  const size_t weight = InputIndex(op, kWeight).value();
  const bool bf16 = weight < types.inputs.size() && IsBf16(op, types.inputs[weight]);
  const ConvDescription shape = ConvShapeOf(op, batch, bf16);
  std::vector<Candidate> candidates;
  for (const ConvAlgorithm& algorithm : ConvAlgorithms(step)) {
    if (IsInaccurate(algorithm, shape)) continue;
    const std::optional<Bytes> workspace = impl_->dnn.ConvWorkspace(
        step, shape, algorithm.value, {op.name, op.slots[slot].name, algorithm.name});
    if (!workspace) continue;
    candidates.push_back({std::string(algorithm.name), *workspace, algorithm.deterministic});
  }
  if (candidates.empty()) {
    throw InputError(fmt::format("op '{}', slot '{}': cuDNN {} has no algorithm for {} at batch {}",
                                 op.name, op.slots[slot].name, DnnLibrary::Version(),
                                 op.slots[slot].signature, batch));
  }
  return candidates;
}

void CudaKernels::Launch(const Op& op, const SlotLaunch& launch, CUstream_st* stream) {
  SPILLWAY_CHECK(launch.slot < op.slots.size());
  SPILLWAY_CHECK(launch.first >= 0 && launch.batch >= 1 && launch.first + launch.batch <= op.batch);
  RequireExecutableOnGpu(op);
  if (launch.batch != op.batch && Holds(op, StepOf(op).whole_batch)) {
    throw InputError(
        fmt::format("op '{}' ({}): its batch cannot be split", op.name, Name(op.type)));
  }
  impl_->UseStream(stream);
  const Operands operands(op, launch);
  const Activity activity{op.name, op.slots[launch.slot].name, launch.algorithm};
  const SumScratch scratch{impl_->partial_sums.floats(), kScratchFloats};
  if (Products::Has(op))
    return impl_->products.Run(op, launch, operands, scratch, impl_->spare, activity);
  if (RunSequence({op, launch, operands, scratch, stream})) return;
  switch (op.type) {
    case OpType::kConv2d:
      return impl_->Convolution(op, launch, operands, activity);
    case OpType::kLinear:
      return impl_->Linear(op, launch, operands, activity);
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
      return impl_->Pooling(op, launch, operands);
    case OpType::kLrn:
      return impl_->Normalise(op, launch, operands, activity);
    case OpType::kBatchNorm:
      return impl_->BatchNorm(op, launch, operands, activity);
    case OpType::kAttention:
      return impl_->attention.Run(op, launch, operands, impl_->spare, activity);
    case OpType::kFork:
      return impl_->Fork(op, launch, operands);
    case OpType::kRelu:
    case OpType::kGelu:
    case OpType::kSilu:
    case OpType::kDropout:
    case OpType::kAdd:
      return impl_->Pointwise(op, launch, operands);
    case OpType::kConcat:
      return impl_->Concatenate(op, launch, operands);
    case OpType::kRows:
      return impl_->GatherRows(op, launch, operands);
    case OpType::kMul:
      return impl_->Multiply(op, launch, operands);
    case OpType::kSgd:
      return impl_->Sgd(op, launch, operands);
    default:
      break;
  }
}

}  // namespace spillway::cuda
