#include "backend/cuda/sequence_ops.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/gradient_clip.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {
namespace {

using enum Role;

void RunNorm(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t positions = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 1, kMostNormFeatures);
  const int64_t rows = launch.batch * positions;
  const bool centred = op.type == OpType::kLayerNorm;
  const ConstElements x = operands.Read(kX, positions * features);
  const ConstElements weight = operands.ReadShared(kWeight, features);
  if (op.phase == Phase::kForward) {
    const bool training = op.Flag("training");
    ConstElements bias;
    if (centred) bias = operands.ReadShared(kBias, features);
    Normalize(x, weight, bias, operands.Write(kY, positions * features),
              training && centred ? operands.Output(kMean, positions) : nullptr,
              training ? operands.Output(kInvStd, positions) : nullptr, rows, features,
              static_cast<float>(op.NumberAttribute("epsilon")), stream);
    return;
  }
  Elements dx, dbias;
  if (op.Flag("needs_dx")) dx = operands.Write(kDx, positions * features);
  if (centred) dbias = operands.WriteShared(kDbias, features);
  NormalizeBackward(x, weight, operands.Read(kDy, positions * features),
                    centred ? operands.Input(kMean, positions) : nullptr,
                    operands.Input(kInvStd, positions), dx, op.Accumulates(0),
                    operands.WriteShared(kDweight, features), dbias,
                    ParameterScale(op, launch, kDweight), rows, features, scratch, stream);
}

void RunEmbedding(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t positions = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 1);
  const int64_t vocabulary = op.IntAttribute("vocabulary", 1);
  const int64_t rows = launch.batch * positions;
  const int32_t* tokens = operands.Integers(kIndices, positions);
  if (op.phase == Phase::kForward) {
    Embed(tokens, operands.ReadShared(kWeight, vocabulary * features),
          operands.Write(kY, positions * features), rows, vocabulary, features, stream);
  } else {
    EmbedBackward(tokens, operands.Read(kDy, positions * features),
                  operands.WriteShared(kDweight, vocabulary * features),
                  ParameterScale(op, launch, kDweight), rows, vocabulary, features, stream);
  }
}

void RunPositionEmbedding(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 1);
  const int64_t span = op.IntAttribute("span", 1);
  const bool class_token = op.Flag("class_token");
  const int64_t y_size = length * features;
  const int64_t x_size = y_size - (class_token ? features : 0);
  const int64_t positions = op.IntAttribute("positions", (length - 1) / span + 1);
  if (op.phase == Phase::kForward) {
    ConstElements token;
    if (class_token) token = operands.ReadShared(kBias, features);
    EmbedPositions(operands.Read(kX, x_size), operands.ReadShared(kWeight, positions * features),
                   token, operands.Write(kY, y_size), launch.batch, length, features, span, stream);
    return;
  }
  const ConstElements dy = operands.Read(kDy, y_size);
  if (op.Flag("needs_dx")) {
    const Elements dx = operands.Write(kDx, x_size);
    const bool accumulate = op.Accumulates(0);
    const int64_t count = launch.batch * x_size;
    if (class_token) {
      PixelGradients(dy, dx, accumulate, launch.batch, length, features, stream);
    } else if (accumulate || dx.data != dy.data) {
      CopyRows(dy, count, dx, count, count, 1, accumulate, stream);
    }
  }
  SumColumns(dy, launch.batch, length, span, positions, features,
             operands.WriteShared(kDweight, positions * features),
             ParameterScale(op, launch, kDweight), scratch, stream);
  if (class_token) {
    SumColumns(dy, launch.batch, length, 1, 1, features, operands.WriteShared(kDbias, features),
               ParameterScale(op, launch, kDbias), scratch, stream);
  }
}

void RunRotary(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t heads = op.IntAttribute("heads", 1);
  const int64_t head_dim = op.IntAttribute("head_dim", 2);
  if (head_dim % 2 != 0) {
    throw InputError(
        fmt::format("op '{}' (rotary): attribute 'head_dim' is {}, expected an even number",
                    op.name, head_dim));
  }
  const int64_t size = length * heads * head_dim;
  const bool backward = op.phase == Phase::kBackward;
  Rotate(operands.Read(backward ? kDy : kX, size), operands.Write(backward ? kDx : kY, size),
         backward, backward && op.Accumulates(0), launch.batch, length, heads, head_dim,
         op.NumberAttribute("theta"), stream);
}

void RunSelect(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t length = op.IntAttribute("rows", 1);
  const int64_t features = op.IntAttribute("features", 1);
  const int64_t all = length * features;
  const int64_t first = op.IntAttribute("index", 0, length - 1) * features;
  if (op.phase == Phase::kForward) {
    CopyRows(operands.Read(kX, all) + first, all, operands.Write(kY, features), features, features,
             launch.batch, false, stream);
    return;
  }
  const Elements dx = operands.Write(kDx, all);
  const bool accumulate = op.Accumulates(0);
  if (!accumulate) {
    SPILLWAY_CUDA_CALL(
        cudaMemsetAsync(dx.data, 0, static_cast<size_t>(dx.Size(launch.batch * all)), stream));
  }
  CopyRows(operands.Read(kDy, features), features, dx + first, all, features, launch.batch,
           accumulate, stream);
}

void RunSoftmax(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t columns = op.IntAttribute("columns", 1);
  const int64_t positions = op.IntAttribute("rows", 1);
  const int64_t size = positions * columns;
  const int64_t rows = launch.batch * positions;
  const bool causal = op.Flag("causal");
  if (op.phase == Phase::kForward) {
    Softmax(operands.Read(kX, size), operands.Write(kY, size), rows, columns, causal, stream);
  } else {
    SoftmaxBackward(operands.Read(kY, size), operands.Read(kDy, size), operands.Write(kDx, size),
                    op.Accumulates(0), rows, columns, causal, stream);
  }
}

void RunLoss(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t classes = op.IntAttribute("elements", 1);
  const int64_t positions = PositionsOf(op);
  const int64_t rows = launch.batch * positions;
  const int32_t* labels = operands.Integers(kLabels, positions);
  const bool is_share = op.FindAttribute("mean_over").has_value();
  const float scale =
      1 / static_cast<float>(is_share ? op.IntAttribute("mean_over", 1) : op.batch * positions);
  if (op.phase == Phase::kForward) {
    const Elements y = operands.Write(kY, positions * classes);
    Softmax(operands.Read(kX, positions * classes), y, rows, classes, /*causal=*/false, stream);
    CrossEntropy(y, labels, operands.SharedOutput(kLoss, 1), rows, classes, scale, launch.first > 0,
                 stream);
  } else {
    SoftmaxCrossEntropyBackward(operands.Read(kY, positions * classes), labels,
                                operands.Write(kDx, positions * classes), rows, classes, scale,
                                stream);
  }
}

void RunAdam(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const AdamRule rule{.learning_rate = op.NumberAttribute("learning_rate"),
                      .beta1 = op.NumberAttribute("beta1"),
                      .beta2 = op.NumberAttribute("beta2"),
                      .epsilon = op.NumberAttribute("epsilon"),
                      .weight_decay = op.NumberAttribute("weight_decay"),
                      .decay_apart = op.type == OpType::kAdamW};
  const bool master = op.Flag("master");
  std::array<AdamParameter, kMostAdamParameters> parameters;
  size_t count = 0;
  const std::vector<int64_t> sizes = ParameterSizes(op, launch);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i];
    const Role weight = master ? kMaster : kParameter;
    AdamParameter& p = parameters[count++];
    p = {};
    p.weight = operands.SharedInput(weight, size, i);
    p.gradient = operands.ReadShared(kGradient, size, i);
    p.first = operands.SharedInput(kMomentum, size, i);
    p.second = operands.SharedInput(kSecondMoment, size, i);
    p.step = operands.SharedInput(kStep, 1, i);
    p.next_weight = operands.SharedOutput(weight, size, i);
    p.next_first = operands.SharedOutput(kMomentum, size, i);
    p.next_second = operands.SharedOutput(kSecondMoment, size, i);
    p.next_step = operands.SharedOutput(kStep, 1, i);
    if (master) p.next_copy = operands.WriteShared(kParameter, size, i);
    p.count = size;
    if (count < kMostAdamParameters && i + 1 < sizes.size()) continue;
    Adam(parameters.data(), count, rule, stream);
    count = 0;
  }
}

void RunSquareSum(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t count = op.IntAttribute("elements");
  SumSquares(operands.ReadShared(kGradient, count), count, operands.SharedOutput(kSquareSum, 1),
             op.Accumulates(0), scratch, stream);
}

void RunClip(const SequenceCall& call) {
  const auto& [op, launch, operands, scratch, stream] = call;
  const int64_t count = op.IntAttribute("elements");
  ClipGradient(operands.ReadShared(kGradient, count), operands.SharedInput(kSquareSum, 1),
               static_cast<float>(op.NumberAttribute("max_norm")),
               operands.WriteShared(kGradient, count), count, stream);
}

}  // namespace

bool RunSequence(const SequenceCall& call) {
  switch (call.op.type) {
    case OpType::kLayerNorm:
    case OpType::kRmsNorm:
      return RunNorm(call), true;
    case OpType::kEmbedding:
      return RunEmbedding(call), true;
    case OpType::kPositionEmbedding:
      return RunPositionEmbedding(call), true;
    case OpType::kRotary:
      return RunRotary(call), true;
    case OpType::kSelect:
      return RunSelect(call), true;
    case OpType::kSoftmax:
      return RunSoftmax(call), true;
    case OpType::kSoftmaxLoss:
      return RunLoss(call), true;
    case OpType::kSquareSum:
      return RunSquareSum(call), true;
    case OpType::kClip:
      return RunClip(call), true;
    case OpType::kAdam:
    case OpType::kAdamW:
      return RunAdam(call), true;
    default:
      return false;
  }
}

}  // namespace spillway::cuda
