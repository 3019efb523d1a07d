#include "backend/cuda/kernels.h"

#include <fmt/format.h>

#include <limits>

#include "backend/cuda/conv_algorithm.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/dnn_library.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/pooling.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

constexpr int64_t kElementSize = sizeof(float);
// Of a batch normalisation with a fused update, at most.
constexpr int64_t kMostChannels = 65536;

[[noreturn]] void Unsupported(const Op& op) {
  throw InputError(
      fmt::format("op '{}': the CUDA backend cannot execute {} ops; supported: conv2d, linear, "
                  "maxpool2d, avgpool2d, relu, lrn, batchnorm, dropout, concat, add, fork, "
                  "softmax_loss, sgd",
                  op.name, Name(op.type)));
}

int IntOf(const Op& op, std::string_view attribute) {
  const int64_t value = op.IntAttribute(attribute);
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw InputError(
        fmt::format("op '{}': attribute '{}' is {}, out of range", op.name, attribute, value));
  }
  return static_cast<int>(value);
}

double NumberOf(const Op& op, std::string_view attribute) {
  const std::optional<double> value = op.FindAttribute(attribute);
  if (!value) {
    throw InputError(
        fmt::format("op '{}' ({}) lacks the attribute '{}'", op.name, Name(op.type), attribute));
  }
  return *value;
}

float FloatOf(const Op& op, std::string_view attribute) {
  return static_cast<float>(NumberOf(op, attribute));
}

bool Flag(const Op& op, std::string_view attribute) {
  return op.FindAttribute(attribute).value_or(0) != 0;
}

// Whether outputs[output], the gradient of an activation, is added to.
bool Accumulates(const Op& op, size_t output) {
  const auto mask = static_cast<uint64_t>(op.FindAttribute("accumulate").value_or(0));
  return output < 64 && ((mask >> output) & 1) != 0;
}

ConvDescription ConvShapeOf(const Op& op, int64_t batch) {
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
  if (shape.groups < 1 || shape.in_channels % shape.groups != 0 ||
      shape.out_channels % shape.groups != 0) {
    throw InputError(fmt::format("op '{}': {} groups do not divide {} and {} channels", op.name,
                                 shape.groups, shape.in_channels, shape.out_channels));
  }
  return shape;
}

// The operands of one launch, checked as they are taken.
class Operands {
 public:
  Operands(const Op& op, const SlotLaunch& launch) : op_(op), launch_(launch) {}

  // Operand of `elements` per sample, at the launch's first sample.
  const float* Input(size_t i, int64_t elements) const {
    return Take(launch_.inputs, i, "input", (launch_.first + launch_.batch) * elements) +
           launch_.first * elements;
  }
  float* Output(size_t i, int64_t elements) const {
    return Take(launch_.outputs, i, "output", (launch_.first + launch_.batch) * elements) +
           launch_.first * elements;
  }
  // Operand without a batch dimension.
  const float* SharedInput(size_t i, int64_t elements) const {
    return Take(launch_.inputs, i, "input", elements);
  }
  float* SharedOutput(size_t i, int64_t elements) const {
    return Take(launch_.outputs, i, "output", elements);
  }

 private:
  float* Take(std::span<const DeviceRange> ranges, size_t i, const char* what,
              int64_t elements) const {
    if (i >= ranges.size()) {
      throw InputError(fmt::format("op '{}' ({}) has {} {}s, needs {}", op_.name, Name(op_.type),
                                   ranges.size(), what, i + 1));
    }
    if (ranges[i].size < Bytes(elements * kElementSize)) {
      throw InputError(fmt::format("op '{}' ({}): {} {} has {} bytes, needs {}", op_.name,
                                   Name(op_.type), what, i, ranges[i].size.count(),
                                   elements * kElementSize));
    }
    return reinterpret_cast<float*>(ranges[i].data);
  }

  const Op& op_;
  const SlotLaunch& launch_;
};

// How a parameter gradient is written: out = alpha * gradient + beta * out.
struct GradientScale {
  float alpha = 1;
  float beta = 0;
};

GradientScale ParameterScale(const Op& op, const SlotLaunch& launch) {
  if (Flag(op, "fused_update")) return {-FloatOf(op, "learning_rate"), 1};
  return {1, launch.first > 0 ? 1.0f : 0.0f};
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
        parameter_gradients(Bytes(2 * kMostChannels * kElementSize)) {
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
    SPILLWAY_CUBLAS_CALL(cublasSetStream(blas, next));
    stream = next;
    stream_set = true;
  }

  void Convolution(const Op& op, const SlotLaunch& launch, const Operands& operands,
                   const Activity& activity);
  void Linear(const Op& op, const SlotLaunch& launch, const Operands& operands,
              const Activity& activity);
  // Column-major c = alpha * a * b + beta * c.
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
  void Loss(const Op& op, const SlotLaunch& launch, const Operands& operands);
  void Sgd(const Op& op, const SlotLaunch& launch, const Operands& operands);

  uint64_t seed;
  bool tf32;
  DnnLibrary dnn;
  // Where cuDNN puts the gradients of a weight that it still reads and that they will be added to.
  DeviceBuffer parameter_gradients;
  cublasHandle_t blas = nullptr;
  cudaStream_t stream = nullptr;
  bool stream_set = false;
};

void CudaKernels::Impl::Convolution(const Op& op, const SlotLaunch& launch,
                                    const Operands& operands, const Activity& activity) {
  const ConvStep step = ParseConvStep(op.slots[launch.slot].name);
  const ConvDescription s = ConvShapeOf(op, launch.batch);
  const int algorithm = FindConvAlgorithm(step, launch.algorithm).value;
  const int64_t in = int64_t{s.in_channels} * s.in_height * s.in_width;
  const int64_t out = int64_t{s.out_channels} * s.out_height * s.out_width;
  const int64_t weights =
      int64_t{s.out_channels} * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
  const int plane = s.out_height * s.out_width;
  const bool bias = Flag(op, "bias");
  switch (step) {
    case ConvStep::kForward: {
      float* y = operands.Output(0, out);
      dnn.Convolve(step, s, algorithm, 1, operands.Input(0, in), operands.SharedInput(1, weights),
                   0, y, launch.workspace, activity);
      if (bias) {
        dnn.AddBias(s.batch, s.out_channels, plane, operands.SharedInput(2, s.out_channels), y,
                    activity);
      }
      return;
    }
    case ConvStep::kBackwardData:
      dnn.Convolve(step, s, algorithm, 1, operands.SharedInput(1, weights), operands.Input(2, out),
                   Accumulates(op, 0) ? 1.0f : 0.0f, operands.Output(0, in), launch.workspace,
                   activity);
      return;
    case ConvStep::kBackwardFilter: {
      const size_t gradient = Flag(op, "needs_dx") ? 1 : 0;
      const GradientScale scale = ParameterScale(op, launch);
      const float* dy = operands.Input(2, out);
      dnn.Convolve(step, s, algorithm, scale.alpha, operands.Input(0, in), dy, scale.beta,
                   operands.SharedOutput(gradient, weights), launch.workspace, activity);
      if (bias) {
        dnn.BiasGradient(s.batch, s.out_channels, plane, scale.alpha, dy, scale.beta,
                         operands.SharedOutput(gradient + 1, s.out_channels), activity);
      }
      return;
    }
  }
}

void CudaKernels::Impl::Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha,
                             const float* a, int lda, const float* b, int ldb, float beta, float* c,
                             int ldc, const Activity& activity) {
  SPILLWAY_CUBLAS_CALL(cublasSgemm(blas, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                   transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha, a, lda,
                                   b, ldb, &beta, c, ldc),
                       activity);
}

// Row-major x[n][in], weight[out][in] and y[n][out] are column-major in x n, in x out and out x n.
void CudaKernels::Impl::Linear(const Op& op, const SlotLaunch& launch, const Operands& operands,
                               const Activity& activity) {
  const int in = IntOf(op, "in_features");
  const int out = IntOf(op, "out_features");
  const auto n = static_cast<int>(launch.batch);
  const bool bias = Flag(op, "bias");
  const float* x = operands.Input(0, in);
  const float* weight = operands.SharedInput(1, int64_t{in} * out);
  if (op.phase == Phase::kForward) {
    float* y = operands.Output(0, out);
    Gemm(true, false, out, n, in, 1, weight, in, x, in, 0, y, out, activity);
    if (bias) dnn.AddBias(n, out, 1, operands.SharedInput(2, out), y, activity);
    return;
  }
  const bool needs_dx = Flag(op, "needs_dx");
  if (needs_dx && Flag(op, "fused_update") && launch.batch != op.batch) {
    throw InputError(fmt::format(
        "op '{}': a linear backward step that updates its weight cannot be split", op.name));
  }
  const float* dy = operands.Input(2, out);
  if (needs_dx) {
    Gemm(false, false, in, n, out, 1, weight, in, dy, out, Accumulates(op, 0) ? 1.0f : 0.0f,
         operands.Output(0, in), in, activity);
  }
  const size_t gradient = needs_dx ? 1 : 0;
  const GradientScale scale = ParameterScale(op, launch);
  Gemm(false, true, in, out, n, scale.alpha, x, in, dy, out, scale.beta,
       operands.SharedOutput(gradient, int64_t{in} * out), in, activity);
  if (bias) {
    dnn.BiasGradient(n, out, 1, scale.alpha, dy, scale.beta,
                     operands.SharedOutput(gradient + 1, out), activity);
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
    (max ? MaxPool : AveragePool)(s, operands.Input(0, in), operands.Output(0, out), stream);
  } else if (max) {
    MaxPoolBackward(s, operands.Input(0, in), operands.Input(1, out), operands.Input(2, out),
                    operands.Output(0, in), Accumulates(op, 0), stream);
  } else {
    AveragePoolBackward(s, operands.Input(0, out), operands.Output(0, in), Accumulates(op, 0),
                        stream);
  }
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
    dnn.Lrn(s, operands.Input(0, elements), operands.Output(0, elements), activity);
    return;
  }
  const float* x = operands.Input(0, elements);
  const float* y = operands.Input(1, elements);
  const float* dy = operands.Input(2, elements);
  float* dx = operands.Output(0, elements);
  if (dx != dy) {
    dnn.LrnBackward(s, x, y, dy, Accumulates(op, 0) ? 1.0f : 0.0f, dx, activity);
    return;
  }
  // cuDNN may read dy of neighbouring channels after it has written dx.
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
  s.epsilon = NumberOf(op, "epsilon");
  const bool backward = op.phase == Phase::kBackward;
  if ((backward || Flag(op, "training")) && launch.batch != op.batch) {
    throw InputError(
        fmt::format("op '{}': a batch normalisation in training cannot be split", op.name));
  }
  if (backward) return BatchNormBackward(op, s, operands, activity);
  const int64_t elements = int64_t{s.channels} * s.height * s.width;
  const float* x = operands.Input(0, elements);
  const float* weight = operands.SharedInput(1, s.channels);
  const float* bias = operands.SharedInput(2, s.channels);
  float* y = operands.Output(0, elements);
  if (Flag(op, "training")) {
    dnn.BatchNormTraining(s, x, weight, bias, y, operands.SharedOutput(1, s.channels),
                          operands.SharedOutput(2, s.channels), activity);
  } else {
    dnn.BatchNormInference(s, x, weight, bias, operands.SharedInput(3, s.channels),
                           operands.SharedInput(4, s.channels), y, activity);
  }
}

void CudaKernels::Impl::BatchNormBackward(const Op& op, const BatchNormGeometry& shape,
                                          const Operands& operands, const Activity& activity) {
  const int64_t channels = shape.channels;
  const int64_t plane = int64_t{shape.height} * shape.width;
  const bool needs_dx = Flag(op, "needs_dx");
  const bool fused = Flag(op, "fused_update");
  if (fused && channels > kMostChannels) {
    throw InputError(
        fmt::format("op '{}': {} channels with a fused update, at most {} are possible", op.name,
                    channels, kMostChannels));
  }
  const float* x = operands.Input(0, channels * plane);
  const float* weight = operands.SharedInput(1, channels);
  const float* dy = operands.Input(2, channels * plane);
  const float* mean = operands.SharedInput(3, channels);
  const float* inv_std = operands.SharedInput(4, channels);
  const size_t first = needs_dx ? 1 : 0;
  float* const weight_out = operands.SharedOutput(first, channels);
  float* const bias_out = operands.SharedOutput(first + 1, channels);
  float* dweight = fused ? parameter_gradients.floats() : weight_out;
  float* dbias = fused ? parameter_gradients.floats() + kMostChannels : bias_out;
  if (needs_dx) {
    dnn.BatchNormBackward(shape, x, weight, dy, mean, inv_std, Accumulates(op, 0) ? 1.0f : 0.0f,
                          operands.Output(0, channels * plane), dweight, dbias, activity);
  } else {
    BatchNormParameterGradients(x, dy, mean, inv_std, dweight, dbias, shape.batch, channels, plane,
                                stream);
  }
  if (fused) {
    const float scale = -FloatOf(op, "learning_rate");
    const auto n = static_cast<int>(channels);
    SPILLWAY_CUBLAS_CALL(cublasSaxpy(blas, n, &scale, dweight, 1, weight_out, 1), activity);
    SPILLWAY_CUBLAS_CALL(cublasSaxpy(blas, n, &scale, dbias, 1, bias_out, 1), activity);
  }
  MoveRunningStatistics(mean, inv_std, operands.SharedOutput(first + 2, channels),
                        operands.SharedOutput(first + 3, channels), channels, shape.batch * plane,
                        FloatOf(op, "epsilon"), FloatOf(op, "momentum"), stream);
}

// Relu, dropout and add.
void CudaKernels::Impl::Pointwise(const Op& op, const SlotLaunch& launch,
                                  const Operands& operands) {
  const int64_t elements = op.IntAttribute("elements");
  const int64_t count = launch.batch * elements;
  const bool forward = op.phase == Phase::kForward;
  const float* in = operands.Input(0, elements);
  float* out = operands.Output(0, elements);
  if (op.type == OpType::kRelu) {
    if (forward) {
      Relu(in, out, count, stream);
    } else {
      ReluBackward(in, operands.Input(1, elements), out, count, Accumulates(op, 0), stream);
    }
  } else if (op.type == OpType::kDropout) {
    Dropout(in, out, count, launch.first * elements, seed, static_cast<uint32_t>(op.layer),
            FloatOf(op, "ratio"), !forward && Accumulates(op, 0), stream);
  } else if (forward) {
    AddTensors(in, operands.Input(1, elements), out, count, stream);
  } else {
    for (size_t i = 0; i < launch.outputs.size(); ++i) {
      float* dx = operands.Output(i, elements);
      const bool accumulate = Accumulates(op, i);
      if (dx == in && !accumulate) continue;  // in place: it is there already
      CopyRows(in, count, dx, count, count, 1, accumulate, stream);
    }
  }
}

void CudaKernels::Impl::Fork(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const int64_t elements = op.IntAttribute("elements");
  const int64_t count = launch.batch * elements;
  const auto parts = static_cast<size_t>(IntOf(op, "parts"));
  if (op.phase == Phase::kForward) {
    const float* x = operands.Input(0, elements);
    for (size_t i = 0; i < parts; ++i) {
      float* y = operands.Output(i, elements);
      if (y != x) CopyRows(x, count, y, count, count, 1, false, stream);
    }
    return;
  }
  float* dx = operands.Output(0, elements);
  const bool accumulate = Accumulates(op, 0);
  for (size_t i = 0; i < parts; ++i) {
    const float* dy = operands.Input(i, elements);
    if (i == 0 && !accumulate) {
      if (dy != dx) CopyRows(dy, count, dx, count, count, 1, false, stream);
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
      CopyRows(operands.Input(i, length), length, operands.Output(0, total) + offset, total, length,
               launch.batch, false, stream);
    } else {
      CopyRows(operands.Input(0, total) + offset, total, operands.Output(i, length), length, length,
               launch.batch, Accumulates(op, i), stream);
    }
    offset += length;
  }
}

void CudaKernels::Impl::Loss(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  const int64_t classes = op.IntAttribute("elements");
  const auto* labels = reinterpret_cast<const int32_t*>(operands.Input(1, 1));
  const float* in = operands.Input(0, classes);
  float* out = operands.Output(0, classes);
  const float scale = 1 / static_cast<float>(op.batch);
  if (op.phase == Phase::kForward) {
    Softmax(in, out, launch.batch, classes, stream);
    CrossEntropy(out, labels, operands.SharedOutput(1, 1), launch.batch, classes, scale,
                 launch.first > 0, stream);
  } else {
    SoftmaxCrossEntropyBackward(in, labels, out, launch.batch, classes, scale, stream);
  }
}

void CudaKernels::Impl::Sgd(const Op& op, const SlotLaunch& launch, const Operands& operands) {
  if (launch.inputs.size() % 3 != 0 || launch.outputs.size() * 3 != launch.inputs.size() * 2) {
    throw InputError(
        fmt::format("op '{}' (sgd) has {} inputs and {} outputs, needs 3 and 2 per "
                    "parameter",
                    op.name, launch.inputs.size(), launch.outputs.size()));
  }
  int64_t left = op.IntAttribute("elements");
  for (size_t i = 0; 3 * i < launch.inputs.size(); ++i) {
    const int64_t count = launch.inputs[3 * i].size.count() / kElementSize;
    left -= count;
    SgdMomentum(operands.SharedOutput(2 * i, count), operands.SharedInput(3 * i + 1, count),
                operands.SharedOutput(2 * i + 1, count), count, FloatOf(op, "learning_rate"),
                FloatOf(op, "momentum"), FloatOf(op, "weight_decay"), stream);
  }
  if (left != 0) {
    throw InputError(
        fmt::format("op '{}' (sgd): the parameters have {} elements less than the {} "
                    "of attribute 'elements'",
                    op.name, left, op.IntAttribute("elements")));
  }
}

CudaKernels::CudaKernels(const KernelOptions& options) {
  RequireDevice(0);  // says what is missing more plainly than the libraries do
  impl_ = std::make_unique<Impl>(options);
}
CudaKernels::~CudaKernels() = default;

// cuDNN's Winograd transforms for filters larger than 3x3 lose three decimal digits (1e-3 to 2e-2
// of the largest element, measured with cuDNN 9.14): such results are not those of an fp32
// convolution.
static bool IsInaccurate(const ConvAlgorithm& algorithm, const ConvDescription& shape) {
  return algorithm.name == "winograd_nonfused" && std::max(shape.kernel_h, shape.kernel_w) > 3;
}

std::vector<Candidate> CudaKernels::Candidates(const Op& op, size_t slot, int64_t batch) {
  SPILLWAY_CHECK(slot < op.slots.size());
  switch (op.type) {
    case OpType::kConv2d:
      break;
    case OpType::kLinear:
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
    case OpType::kRelu:
    case OpType::kLrn:
    case OpType::kBatchNorm:
    case OpType::kDropout:
    case OpType::kConcat:
    case OpType::kAdd:
    case OpType::kFork:
    case OpType::kSoftmaxLoss:
    case OpType::kSgd:
      return {{"default", Bytes(0), true}};
    case OpType::kInput:
    case OpType::kOther:
      Unsupported(op);
  }
  const ConvStep step = ParseConvStep(op.slots[slot].name);
  const ConvDescription shape = ConvShapeOf(op, batch);
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
  impl_->UseStream(stream);
  const Operands operands(op, launch);
  const Activity activity{op.name, op.slots[launch.slot].name, launch.algorithm};
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
    case OpType::kFork:
      return impl_->Fork(op, launch, operands);
    case OpType::kRelu:
    case OpType::kDropout:
    case OpType::kAdd:
      return impl_->Pointwise(op, launch, operands);
    case OpType::kConcat:
      return impl_->Concatenate(op, launch, operands);
    case OpType::kSoftmaxLoss:
      return impl_->Loss(op, launch, operands);
    case OpType::kSgd:
      return impl_->Sgd(op, launch, operands);
    case OpType::kInput:
    case OpType::kOther:
      Unsupported(op);
  }
}

}  // namespace spillway
