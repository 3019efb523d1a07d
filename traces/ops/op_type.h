// The types of layers and ops and the phases of an iteration, with their spelling in files.

#ifndef SPILLWAY_TRACES_OPS_OP_TYPE_H_
#define SPILLWAY_TRACES_OPS_OP_TYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spillway::traces {

// The function that a layer or an op computes; ops/op_table.h has a row for each. The last three
// are for ops of imported traces, which have recorded costs but no implementation in the backends.
enum class OpType : uint8_t {
  kInput,
  kConv2d,
  kLinear,
  kMaxPool2d,
  kAvgPool2d,
  kRelu,
  kGelu,
  kSilu,
  kLrn,
  kBatchNorm,
  kLayerNorm,
  kRmsNorm,
  kSoftmax,
  kDropout,
  kEmbedding,
  kPositionEmbedding,
  kRotary,
  kAttentionScores,
  kAttentionValues,
  kAttention,
  kSelect,
  kConcat,
  kAdd,
  kMul,
  kFork,
  kRows,
  kSoftmaxLoss,
  kSquareSum,
  kClip,
  kSgd,
  kAdam,
  kAdamW,
  kConvolution,
  kMatmul,
  kOther,
};
inline constexpr std::array kOpTypeNames = std::to_array<std::string_view>({"input",
                                                                            "conv2d",
                                                                            "linear",
                                                                            "maxpool2d",
                                                                            "avgpool2d",
                                                                            "relu",
                                                                            "gelu",
                                                                            "silu",
                                                                            "lrn",
                                                                            "batchnorm",
                                                                            "layernorm",
                                                                            "rmsnorm",
                                                                            "softmax",
                                                                            "dropout",
                                                                            "embedding",
                                                                            "position_embedding",
                                                                            "rotary",
                                                                            "attention_scores",
                                                                            "attention_values",
                                                                            "attention",
                                                                            "select",
                                                                            "concat",
                                                                            "add",
                                                                            "mul",
                                                                            "fork",
                                                                            "rows",
                                                                            "softmax_loss",
                                                                            "square_sum",
                                                                            "clip",
                                                                            "sgd",
                                                                            "adam",
                                                                            "adamw",
                                                                            "convolution",
                                                                            "matmul",
                                                                            "other"});
inline constexpr size_t kOpTypeCount = kOpTypeNames.size();

enum class Phase : uint8_t { kForward, kBackward, kUpdate };
inline constexpr std::array<std::string_view, 3> kPhaseNames{"forward", "backward", "update"};

constexpr size_t Index(OpType type) { return static_cast<size_t>(type); }
constexpr std::string_view Name(OpType type) { return kOpTypeNames[Index(type)]; }
constexpr std::string_view Name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_OPS_OP_TYPE_H_
