#include "traces/ops/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

using enum Role;

constexpr AttributeInfo Number(const char* name, double initial = 0) {
  return {name, AttributeKind::kNumber, initial};
}
constexpr AttributeInfo Flag(const char* name) { return {name, AttributeKind::kFlag}; }

// --- Floating-point operations of one sample

// Returns at most 2^59, so that a sum of several products does not overflow. `Trace::Validate`
// refuses such a number.
int64_t Product(const Op& op, std::initializer_list<std::string_view> attributes) {
  constexpr int64_t kMost = int64_t{1} << 59;
  int64_t product = 1;
  for (const std::string_view attribute : attributes) {
    if (__builtin_mul_overflow(product, op.IntAttribute(attribute), &product)) return kMost;
  }
  return std::min(product, kMost);
}
int64_t Nothing(const Op&) { return 0; }
int64_t Elements(const Op& op) { return op.IntAttribute("elements"); }
int64_t Plane(const Op& op) { return Product(op, {"channels", "height", "width"}); }
int64_t Windows(const Op& op) { return Product(op, {"channels", "out_height", "out_width"}); }
int64_t Convolution(const Op& op) {
  return 2 * Product(op, {"out_channels", "out_height", "out_width"}) *
         (op.IntAttribute("in_channels") / op.IntAttribute("groups")) *
         Product(op, {"kernel_h", "kernel_w"});
}
int64_t Linear(const Op& op) {
  return op.FindAttribute("rows") ? 2 * Product(op, {"rows", "out_features", "in_features"})
                                  : 2 * Product(op, {"out_features", "in_features"});
}
int64_t LinearBackward(const Op& op) { return (op.Flag("needs_dx") ? 2 : 1) * Linear(op); }
int64_t Lrn(const Op& op) { return Plane(op) * (2 * op.IntAttribute("size") + 4); }
// Forward sums x and x^2, then multiplies and adds; backward does as many operations.
int64_t BatchNorm(const Op& op) { return 8 * Plane(op); }
int64_t Join(const Op& op) { return Elements(op) * (op.IntAttribute("parts") - 1); }
int64_t Squares(const Op& op) { return 2 * Elements(op); }
int64_t Momentum(const Op& op) { return 4 * Elements(op); }
int64_t Adam(const Op& op) { return 12 * Elements(op); }
int64_t Sequence(const Op& op) { return Product(op, {"rows", "features"}); }
int64_t Norm(const Op& op) { return 8 * Sequence(op); }
int64_t Rotary(const Op& op) { return 3 * Product(op, {"rows", "heads", "head_dim"}); }
int64_t SoftmaxRows(const Op& op) { return 5 * Product(op, {"rows", "columns"}); }
int64_t SoftmaxLoss(const Op& op) { return PositionsOf(op) * Elements(op); }
// One product of queries and keys, or of probabilities and values.
int64_t Scores(const Op& op) { return 2 * Product(op, {"heads", "rows", "rows", "head_dim"}); }
int64_t ScoresBackward(const Op& op) { return 2 * Scores(op); }
// The fused kernels skip keys behind the query. Backward computes the probabilities again.
int64_t FusedProduct(const Op& op) {
  return op.Flag("causal") ? (Scores(op) + 2 * Product(op, {"heads", "rows", "head_dim"})) / 2
                           : Scores(op);
}
int64_t Attention(const Op& op) { return 2 * FusedProduct(op); }
int64_t AttentionBackward(const Op& op) { return 5 * FusedProduct(op); }

constexpr std::string_view kParametersDetail = " dx={needs_dx} fused={fused_update}";

constexpr OpRow Pool(OpType type, OperandList backward, Rules holds_x, Rules holds_y) {
  return {.type = type,
          .attributes = {"channels", "in_height", "in_width", "out_height", "out_width", "kernel_h",
                         "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w"},
          .geometry =
              "in={channels}x{in_height}x{in_width} out={channels}x{out_height}x{out_width} "
              "kernel={kernel_h}x{kernel_w} stride={stride_h}x{stride_w} pad={pad_h}x{pad_w}",
          .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Windows}}},
          .backward = {.inputs = backward, .outputs = {{kDx}}, .slots = {{"bwd", Windows}}},
          .cheap = true,
          .group = LayerGroup::kFeature,
          .holds_x = holds_x,
          .holds_y = holds_y};
}

constexpr OpRow Activation(OpType type) {
  return {.type = type,
          .attributes = {"elements"},
          .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Elements}}},
          .backward = {.inputs = {{kX, kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Elements}}},
          .cheap = true,
          .group = LayerGroup::kFeature,
          .overwrites_dy = kGradientsInPlace};
}

constexpr OpRow AdamRow(OpType type, double weight_decay) {
  return {
      .type = type,
      .attributes = {"elements", Number("learning_rate", 1e-3), Number("beta1", 0.9),
                     Number("beta2", 0.999), Number("epsilon", 1e-8),
                     Number("weight_decay", weight_decay), Flag("master")},
      .geometry = "elements={elements} master={master}",
      .update = {
          .inputs = {{kParameter, kGradient, {kMaster, "master"}, kMomentum, kSecondMoment, kStep},
                     true},
          .outputs = {{kParameter, {kMaster, "master"}, kMomentum, kSecondMoment, kStep}, true},
          .slots = {{"update", Adam}},
          .whole_batch = ""}};
}

constexpr std::string_view kHeadsGeometry =
    "rows={rows} heads={heads} kv_heads={kv_heads} head_dim={head_dim}";
constexpr std::string_view kCausalGeometry =
    "rows={rows} heads={heads} kv_heads={kv_heads} head_dim={head_dim} causal={causal}";

}  // namespace

constexpr std::array<OpRow, kOpTypeCount> kOpTable{{
    {.type = OpType::kInput},
    {.type = OpType::kConv2d,
     .attributes = {"in_channels", "in_height", "in_width", "out_channels", "out_height",
                    "out_width", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w",
                    "groups", Flag("bias")},
     .geometry =
         "in={in_channels}x{in_height}x{in_width} out={out_channels}x{out_height}x{out_width} "
         "kernel={kernel_h}x{kernel_w} stride={stride_h}x{stride_w} pad={pad_h}x{pad_w} "
         "groups={groups} bias={bias}",
     .forward = {.inputs = {{kX, kWeight, {kBias, "bias"}}},
                 .outputs = {{kY}},
                 .slots = {{"fwd", Convolution}}},
     .backward = {.inputs = {{kX, kWeight, kDy, {kBias, "fused_update&bias"}}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight, {kDbias, "bias"}}},
                  .slots = {{"bwd_data", Convolution, "needs_dx"}, {"bwd_filter", Convolution}}},
     .library = Library::kConvolution,
     .algorithms = true,
     .deterministic = false,
     .group = LayerGroup::kFeature,
     .convolves = true,
     .products = true,
     .holds_y = kHoldsOutputs},
    {.type = OpType::kLinear,
     .attributes =
         {"in_features", "out_features", Flag("bias"), {"rows", AttributeKind::kOptional}},
     .geometry = "in={in_features} out={out_features} bias={bias}{?rows}",
     .forward = {.inputs = {{kX, kWeight, {kBias, "bias"}}},
                 .outputs = {{kY}},
                 .slots = {{"fwd", Linear}}},
     .backward = {.inputs = {{kX, kWeight, kDy, {kBias, "fused_update&bias"}}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight, {kDbias, "bias"}}},
                  .slots = {{"bwd", LinearBackward, "", kParametersDetail}},
                  .whole_batch = "needs_dx&fused_update"},
     .library = Library::kBlas,
     .products = true,
     .holds_y = kHoldsOutputs},
    Pool(OpType::kMaxPool2d, {{kX, kY, kDy}}, 0, 0),
    Pool(OpType::kAvgPool2d, {{kDy}}, kHoldsOperands, kHoldsOutputs | kHoldsOperands),
    {.type = OpType::kRelu,
     .attributes = {"elements"},
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Elements}}},
     .backward = {.inputs = {{kY, kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Elements}}},
     .cheap = true,
     .group = LayerGroup::kInPlace,
     .overwrites_x = kReluInPlace,
     .overwrites_dy = kGradientsInPlace,
     .holds_x = kHoldsOperands},
    Activation(OpType::kGelu),
    Activation(OpType::kSilu),
    {.type = OpType::kLrn,
     .attributes = {"channels", "height", "width", "size", Number("alpha"), Number("beta"),
                    Number("k")},
     .geometry = "in={channels}x{height}x{width} size={size}",
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Lrn}}},
     .backward = {.inputs = {{kX, kY, kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Lrn}}},
     .library = Library::kConvolution,
     .cheap = true,
     .group = LayerGroup::kFeature,
     .overwrites_dy = kGradientsInPlace},
    {.type = OpType::kBatchNorm,
     .attributes = {"channels", "height", "width", Number("epsilon"), Number("momentum")},
     .geometry = "in={channels}x{height}x{width}",
     .forward =
         {.inputs = {{kX, kWeight, kBias, {kRunningMean, "!training"}, {kRunningVar, "!training"}}},
          .outputs = {{kY, {kMean, "training"}, {kInvStd, "training"}}},
          .slots = {{"fwd", BatchNorm, "", " training={training}"}},
          .whole_batch = "training",
          .mode = "training"},
     .backward = {.inputs = {{kX,
                              kWeight,
                              kDy,
                              kMean,
                              kInvStd,
                              kRunningMean,
                              kRunningVar,
                              {kBias, "fused_update"}}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight, kDbias, kRunningMean, kRunningVar}},
                  .slots = {{"bwd", BatchNorm, "", kParametersDetail}},
                  .whole_batch = ""},
     .library = Library::kConvolution,
     .cheap = true,
     .group = LayerGroup::kFeature,
     .stays_fp32 = true},
    {.type = OpType::kLayerNorm,
     .attributes = {"rows", "features", Number("epsilon")},
     .geometry = "rows={rows} features={features}",
     .forward = {.inputs = {{kX, kWeight, kBias}},
                 .outputs = {{kY, {kMean, "training"}, {kInvStd, "training"}}},
                 .slots = {{"fwd", Norm, "", " training={training}"}},
                 .mode = "training"},
     .backward = {.inputs = {{kX, kWeight, kDy, kMean, kInvStd, {kBias, "fused_update"}}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight, kDbias}},
                  .slots = {{"bwd", Norm, "", kParametersDetail}},
                  .whole_batch = ""},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .stays_fp32 = true},
    {.type = OpType::kRmsNorm,
     .attributes = {"rows", "features", Number("epsilon")},
     .geometry = "rows={rows} features={features}",
     .forward = {.inputs = {{kX, kWeight}},
                 .outputs = {{kY, {kInvStd, "training"}}},
                 .slots = {{"fwd", Norm, "", " training={training}"}},
                 .mode = "training"},
     .backward = {.inputs = {{kX, kWeight, kDy, kInvStd}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight}},
                  .slots = {{"bwd", Norm, "", kParametersDetail}},
                  .whole_batch = ""},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .stays_fp32 = true},
    {.type = OpType::kSoftmax,
     .attributes = {"rows", "columns", Flag("causal")},
     .geometry = "rows={rows} columns={columns} causal={causal}",
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", SoftmaxRows}}},
     .backward = {.inputs = {{kY, kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", SoftmaxRows}}},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .stays_fp32 = true,
     .overwrites_x = kSoftmaxInPlace,
     .overwrites_dy = kGradientsInPlace},
    {.type = OpType::kDropout,
     .attributes = {"elements", Number("ratio")},
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Elements}}},
     .backward = {.inputs = {{kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Elements}}},
     .cheap = true,
     .training_only = true,
     .group = LayerGroup::kFeature},
    {.type = OpType::kEmbedding,
     .attributes = {"rows", "vocabulary", "features"},
     .geometry = "rows={rows} vocabulary={vocabulary} features={features}",
     .forward = {.inputs = {{kIndices, kWeight}}, .outputs = {{kY}}, .slots = {{"fwd", Nothing}}},
     .backward = {.inputs = {{kIndices, kDy, {kWeight, "fused_update"}}},
                  .outputs = {{kDweight}},
                  .slots = {{"bwd", Sequence, "", " fused={fused_update}"}},
                  .whole_batch = ""},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .gathers = true},
    {.type = OpType::kPositionEmbedding,
     .attributes = {"rows", "features", "positions", "span", Flag("class_token")},
     .geometry = "rows={rows} features={features} positions={positions} span={span} "
                 "class_token={class_token}",
     .forward = {.inputs = {{kX, kWeight, {kBias, "class_token"}}},
                 .outputs = {{kY}},
                 .slots = {{"fwd", Sequence}}},
     .backward = {.inputs = {{kDy, {kWeight, "fused_update"}, {kBias, "fused_update&class_token"}}},
                  .outputs = {{{kDx, "needs_dx"}, kDweight, {kDbias, "class_token"}}},
                  .slots = {{"bwd", Sequence, "", kParametersDetail}},
                  .whole_batch = ""},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .gathers = true},
    {.type = OpType::kRotary,
     .attributes = {"rows", "heads", "head_dim", Number("theta")},
     .geometry = "rows={rows} heads={heads} head_dim={head_dim}",
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Rotary}}},
     .backward = {.inputs = {{kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Rotary}}},
     .cheap = true,
     .group = LayerGroup::kFeature,
     .overwrites_dy = kGradientsInPlace},
    {.type = OpType::kAttentionScores,
     .attributes = {"rows", "heads", "kv_heads", "head_dim"},
     .geometry = kHeadsGeometry,
     .forward = {.inputs = {{kX, kX2}}, .outputs = {{kY}}, .slots = {{"fwd", Scores}}},
     .backward = {.inputs = {{kX, kX2, kDy}},
                  .outputs = {{kDx, kDx2}},
                  .slots = {{"bwd", ScoresBackward}}},
     .library = Library::kBlas,
     .group = LayerGroup::kFeature,
     .convolves = true,
     .products = true},
    {.type = OpType::kAttentionValues,
     .attributes = {"rows", "heads", "kv_heads", "head_dim"},
     .geometry = kHeadsGeometry,
     .forward = {.inputs = {{kX, kX2}}, .outputs = {{kY}}, .slots = {{"fwd", Scores}}},
     .backward = {.inputs = {{kX, kX2, kDy}},
                  .outputs = {{kDx, kDx2}},
                  .slots = {{"bwd", ScoresBackward}}},
     .library = Library::kBlas,
     .group = LayerGroup::kFeature,
     .convolves = true,
     .products = true},
    {.type = OpType::kAttention,
     .attributes = {"rows", "heads", "kv_heads", "head_dim", Flag("causal")},
     .geometry = kCausalGeometry,
     .forward = {.inputs = {{kX, kX2, kX3}},
                 .outputs = {{kY, {kLogSumExp, "training"}}},
                 .slots = {{"fwd", Attention, "", " training={training}"}},
                 .mode = "training"},
     .backward = {.inputs = {{kX, kX2, kX3, kY, kDy, kLogSumExp}},
                  .outputs = {{kDx, kDx2, kDx3}},
                  .slots = {{"bwd", AttentionBackward}}},
     .group = LayerGroup::kFeature,
     .products = true},
    {.type = OpType::kSelect,
     .attributes = {"rows", "features", "index"},
     .geometry = "rows={rows} features={features}",
     .forward = {.inputs = {{kX}}, .outputs = {{kY}}, .slots = {{"fwd", Nothing}}},
     .backward = {.inputs = {{kDy}}, .outputs = {{kDx}}, .slots = {{"bwd", Nothing}}},
     .cheap = true,
     .group = LayerGroup::kFeature},
    {.type = OpType::kConcat,
     .attributes = {"parts", "height", "width", "channels_*"},
     .geometry = "plane={height}x{width} channels={channels_*}",
     .forward = {.inputs = {{kX}, true}, .outputs = {{kY}}, .slots = {{"fwd", Nothing}}},
     .backward = {.inputs = {{kDy}}, .outputs = {{kDx}, true}, .slots = {{"bwd", Nothing}}},
     .group = LayerGroup::kFeature},
    {.type = OpType::kAdd,
     .attributes = {"elements"},
     .forward = {.inputs = {{kX}, true}, .outputs = {{kY}}, .slots = {{"fwd", Elements}}},
     .backward = {.inputs = {{kDy}}, .outputs = {{kDx}, true}, .slots = {"bwd"}},
     .group = LayerGroup::kFeature,
     .overwrites_x = kAddInPlace},
    {.type = OpType::kMul,
     .attributes = {"elements"},
     .forward = {.inputs = {{kX, kX2}}, .outputs = {{kY}}, .slots = {{"fwd", Elements}}},
     .backward = {.inputs = {{kX, kX2, kDy}},
                  .outputs = {{kDx, kDx2}},
                  .slots = {{"bwd", Elements}}},
     .cheap = true,
     .group = LayerGroup::kFeature},
    {.type = OpType::kFork,
     .attributes = {"elements", "parts"},
     .geometry = "elements={elements} parts={parts}",
     .forward = {.inputs = {{kX}}, .outputs = {{kY}, true}, .slots = {"fwd"}},
     .backward = {.inputs = {{kDy}, true}, .outputs = {{kDx}}, .slots = {{"bwd", Join}}}},
    {.type = OpType::kRows,
     .attributes = {"channels", "width", "first_row", "height", "parts", "height_*",
                    Flag("lowest")},
     .geometry = "rows={channels}x{height}x{width} first={first_row} heights={height_*}",
     .forward = {.inputs = {{kX}, true}, .outputs = {{kY}}, .slots = {{"fwd", Nothing}}},
     .cheap = true},
    {.type = OpType::kSoftmaxLoss,
     .attributes = {"elements",
                    {"rows", AttributeKind::kOptional},
                    {"mean_over", AttributeKind::kOptional}},
     .geometry = "elements={elements}{?rows}",
     .forward = {.inputs = {{kX, kLabels}},
                 .outputs = {{kY, kLoss}},
                 .slots = {{"fwd", SoftmaxLoss}}},
     .backward = {.inputs = {{kY, kLabels}}, .outputs = {{kDx}}, .slots = {{"bwd", SoftmaxLoss}}},
     .group = LayerGroup::kInPlace,
     .stays_fp32 = true,
     .overwrites_x = kSoftmaxInPlace,
     .overwrites_dy = kGradientsInPlace},
    {.type = OpType::kSquareSum,
     .attributes = {"elements"},
     .update = {.inputs = {{kGradient}},
                .outputs = {{kSquareSum}},
                .slots = {{"update", Squares}},
                .whole_batch = ""}},
    {.type = OpType::kClip,
     .attributes = {"elements", Number("max_norm")},
     .update = {.inputs = {{kGradient, kSquareSum}},
                .outputs = {{kGradient}},
                .slots = {{"update", Elements}},
                .whole_batch = ""}},
    {.type = OpType::kSgd,
     .attributes = {"elements", Number("learning_rate", 0.01), Number("momentum", 0.9),
                    Number("weight_decay", 5e-4)},
     .update = {.inputs = {{kParameter, kGradient, kMomentum}, true},
                .outputs = {{kParameter, kMomentum}, true},
                .slots = {{"update", Momentum}},
                .whole_batch = ""}},
    AdamRow(OpType::kAdam, 0),
    AdamRow(OpType::kAdamW, 0.01),
    {.type = OpType::kConvolution,
     .group = LayerGroup::kFeature,
     .convolves = true,
     .products = true},
    {.type = OpType::kMatmul, .group = LayerGroup::kFeature, .convolves = true, .products = true},
    {.type = OpType::kOther, .cheap = true, .group = LayerGroup::kFeature},
}};
static_assert(std::ranges::equal(
                  kOpTable, kOpTable, {}, [](const OpRow& row) { return row.type; },
                  [](const OpRow& row) { return static_cast<OpType>(&row - kOpTable.data()); }),
              "the rows stand in the order of the enumerators");

namespace {

// Returns how many operands of the list the op has, counting a list that repeats once.
size_t CountOf(const Op& op, const OperandList& list) {
  return static_cast<size_t>(std::ranges::count_if(
      list.span(), [&](const Operand& operand) { return Holds(op, operand.when); }));
}

std::optional<size_t> IndexOf(const Op& op, const OperandList& list, Role role, size_t part) {
  size_t index = 0;
  for (const Operand& operand : list.span()) {
    if (!Holds(op, operand.when)) continue;
    if (operand.role == role) return index + part * CountOf(op, list);
    ++index;
  }
  return std::nullopt;
}

std::optional<TensorId> At(const std::vector<TensorId>& operands, std::optional<size_t> index) {
  return index && *index < operands.size() ? std::optional(operands[*index]) : std::nullopt;
}

// Returns `text` with the name of each attribute in braces replaced by the attribute's value.
std::string Fill(const Op& op, std::string_view text) {
  std::string filled;
  for (size_t open = text.find('{'); open != text.npos; open = text.find('{')) {
    const size_t close = text.find('}');
    const std::string_view name = text.substr(open + 1, close - open - 1);
    filled += text.substr(0, open);
    text.remove_prefix(close + 1);
    if (name.starts_with('?')) {
      const std::string_view optional = name.substr(1);
      if (!op.FindAttribute(optional)) continue;
      filled += fmt::format(" {}={}", optional, op.IntAttribute(optional));
      continue;
    }
    if (!name.ends_with('*')) {
      filled += fmt::format("{}", op.IntAttribute(name));
      continue;
    }
    for (int64_t i = 0; i < op.IntAttribute("parts"); ++i) {
      const std::string part = fmt::format("{}{}", name.substr(0, name.size() - 1), i);
      filled += fmt::format("{}{}", i == 0 ? "" : "+", op.IntAttribute(part));
    }
  }
  return filled.append(text);
}

}  // namespace

std::span<const Operand> OperandList::span() const {
  const auto end = std::ranges::find(operands, Role::kNone, &Operand::role);
  return {std::begin(operands), end};
}

bool OperandList::Has(Role role) const {
  return role != Role::kNone && std::ranges::count(operands, role, &Operand::role) != 0;
}

std::span<const AttributeInfo> OpRow::attribute_list() const {
  const auto end = std::ranges::find(attributes, std::string_view(), &AttributeInfo::name);
  return {std::begin(attributes), end};
}

const OpStep& OpRow::step(Phase phase) const {
  return phase == Phase::kForward ? forward : phase == Phase::kBackward ? backward : update;
}

const OpStep& StepOf(const Op& op) {
  static constexpr OpStep kNone{};
  return op.recorded ? kNone : RowOf(op.type).step(op.phase);
}

bool Convolves(const Op& op) {
  return RowOf(op.type).convolves || (op.type == OpType::kLinear && op.FindAttribute("rows"));
}

int64_t PositionsOf(const Op& op) {
  return op.FindAttribute("rows") ? op.IntAttribute("rows", 1) : 1;
}

bool Holds(const Op& op, std::string_view when) {
  while (!when.empty()) {
    const std::string_view one = when.substr(0, when.find('&'));
    when.remove_prefix(std::min(when.size(), one.size() + 1));
    const bool negated = one.starts_with('!');
    if (op.Flag(one.substr(negated ? 1 : 0)) == negated) return false;
  }
  return true;
}

std::optional<size_t> InputIndex(const Op& op, Role role, size_t part) {
  return IndexOf(op, StepOf(op).inputs, role, part);
}

std::optional<size_t> OutputIndex(const Op& op, Role role, size_t part) {
  return IndexOf(op, StepOf(op).outputs, role, part);
}

std::optional<TensorId> FindInput(const Op& op, Role role) {
  return At(op.inputs, InputIndex(op, role));
}

std::optional<TensorId> FindOutput(const Op& op, Role role) {
  return At(op.outputs, OutputIndex(op, role));
}

Role OutputRole(const Op& op, size_t i) {
  const OperandList& list = StepOf(op).outputs;
  if (list.repeats) i %= std::max<size_t>(CountOf(op, list), 1);
  for (const Operand& operand : list.span()) {
    if (Holds(op, operand.when) && i-- == 0) return operand.role;
  }
  return Role::kNone;
}

std::string SignatureOf(const Op& op, const OpSlot& slot) {
  return fmt::format("{}.{} {}{}", Name(op.type), slot.name, Fill(op, RowOf(op.type).geometry),
                     Fill(op, slot.detail));
}

void RequireExecutable(const Op& op, std::string_view backend) {
  if (StepOf(op).exists()) return;
  std::vector<std::string_view> types;
  for (const OpRow& row : kOpTable) {
    if (row.executable()) types.push_back(Name(row.type));
  }
  throw InputError(
      fmt::format("op '{}': the {} backend cannot execute {}{} ops; supported: {}", op.name,
                  backend, RowOf(op.type).executable() ? fmt::format("{} ", Name(op.phase)) : "",
                  Name(op.type), fmt::join(types, ", ")));
}

void RequireExecutableOnGpu(const Op& op) {
  RequireExecutable(op, "CUDA");
  if (RowOf(op.type).on_gpu) return;
  throw InputError(fmt::format(
      "op '{}': the CUDA backend has no kernel for {} ops; the backends sim and cpu run "
      "it",
      op.name, Name(op.type)));
}

size_t ParameterCount(const Op& op, size_t inputs, size_t outputs) {
  const size_t in = CountOf(op, StepOf(op).inputs), out = CountOf(op, StepOf(op).outputs);
  if (inputs % in != 0 || outputs * in != inputs * out) {
    throw InputError(
        fmt::format("op '{}' ({}) has {} inputs and {} outputs, needs {} and {} per parameter",
                    op.name, Name(op.type), inputs, outputs, in, out));
  }
  return inputs / in;
}

}  // namespace spillway::traces
