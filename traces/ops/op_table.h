// The op table: one row with all facts about each type of op.
//
// Lowering, cost models, policies and backends read it; none has its own list of op types. A
// condition (`when`) is the name of an attribute of the op. It holds if the attribute is not 0;
// with '!' before the name, if it is 0 or missing. Conditions joined by '&' must all hold, and the
// empty condition always holds. traces/FORMAT.md explains the operands; `spillway list ops` prints
// the table.

#ifndef SPILLWAY_TRACES_OPS_OP_TABLE_H_
#define SPILLWAY_TRACES_OPS_OP_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "traces/ops/op.h"

namespace spillway::traces {

// The role of an operand in its op. The role of a gradient follows the role of its operand.
enum class Role : uint8_t {
  kNone,
  kX,  // the layer's input; the layer's first input if the list also names the next two
  kDx,
  kX2,
  kDx2,
  kX3,
  kDx3,
  kY,  // the layer's output
  kDy,
  kWeight,
  kDweight,  // the parameter itself if the update is fused; also for kDbias
  kBias,
  kDbias,
  kMean,  // this role and the three below have one value per channel, or per position of a sequence
  kInvStd,
  kRunningMean,
  kRunningVar,
  kLogSumExp,  // one value for each head and position
  kIndices,    // the layer's input if it chooses rows of the weight
  kLabels,
  kLoss,
  kParameter,  // the parameter of an update; its gradient is kGradient
  kGradient,
  kSquareSum,  // one value over the elements of all gradients
  kMaster,     // the parameter in float32, if its own type is shorter
  kMomentum,
  kSecondMoment,
  kStep,  // the number of updates so far, one value
};
inline constexpr std::array kRoleNames = std::to_array<std::string_view>({"",
                                                                          "x",
                                                                          "dx",
                                                                          "x2",
                                                                          "dx2",
                                                                          "x3",
                                                                          "dx3",
                                                                          "y",
                                                                          "dy",
                                                                          "weight",
                                                                          "dweight",
                                                                          "bias",
                                                                          "dbias",
                                                                          "mean",
                                                                          "inv_std",
                                                                          "running_mean",
                                                                          "running_var",
                                                                          "log_sum_exp",
                                                                          "indices",
                                                                          "labels",
                                                                          "loss",
                                                                          "parameter",
                                                                          "gradient",
                                                                          "square_sum",
                                                                          "master",
                                                                          "momentum",
                                                                          "second_moment",
                                                                          "step"});

constexpr size_t Index(Role role) { return static_cast<size_t>(role); }
constexpr std::string_view Name(Role role) { return kRoleNames[Index(role)]; }
constexpr Role GradientOf(Role role) { return static_cast<Role>(Index(role) + 1); }

// A condition that never holds, because no op has an attribute of this name.
inline constexpr std::string_view kNever = "never";

struct Operand {
  Role role = Role::kNone;
  std::string_view when{};

  constexpr Operand() = default;
  constexpr Operand(Role r, std::string_view w = {}) : role(r), when(w) {}
};

// The operands of one direction, in order. Further inputs of a backward op follow the list: each
// gradient that the op adds to, x if it has `holds_x`, and y if it has `holds_y`. No backend reads
// them by index.
struct OperandList {
  Operand operands[8];
  bool repeats = false;  // the whole list occurs once for each part or parameter

  std::span<const Operand> span() const;
  bool Has(Role role) const;
};

struct OpSlot {
  std::string_view name{};
  // Returns the floating-point operations of one sample. If null, the slot only copies inputs[0] to
  // the outputs, and an output that shares the storage of inputs[0] costs nothing.
  int64_t (*flops)(const Op& op) = nullptr;
  std::string_view when{};
  std::string_view detail{};  // follows the geometry in the signature
};

struct OpStep {
  OperandList inputs;
  OperandList outputs;
  OpSlot slots[2];
  std::string_view whole_batch = kNever;  // when the step must not be split into micro-batches
  std::string_view mode{};                // an additional attribute: 1 in training, 0 in inference

  bool exists() const { return !slots[0].name.empty(); }
};

// An optional attribute is an integer that some ops of the type lack.
enum class AttributeKind : uint8_t { kInteger, kNumber, kFlag, kOptional };

struct AttributeInfo {
  std::string_view name{};  // "channels_*" means one attribute for each part
  AttributeKind kind = AttributeKind::kInteger;
  double initial = 0;  // default of an update rule's coefficient

  constexpr AttributeInfo() = default;
  constexpr AttributeInfo(const char* n, AttributeKind k = AttributeKind::kInteger, double i = 0)
      : name(n), kind(k), initial(i) {}
};

// The library whose kernels execute the ops of a type.
enum class Library : uint8_t {
  kNone,         // the project's own kernels
  kConvolution,  // cuDNN, which takes hundreds of microseconds to choose its kernels; a backend
                 // with support for graphs therefore launches these ops from graphs
  kBlas,
};

// The group of a layer in papers that offload by kinds of layers (vDNN, section III-C).
enum class LayerGroup : uint8_t {
  kNone,
  kFeature,  // feature extraction
  kInPlace,  // works in place and counts as a part of the layer before it
};

// Accounting rules that a preset can have; lowering/preset.h explains each.
using Rules = uint8_t;
inline constexpr Rules kReluInPlace = 1, kAddInPlace = 2, kSoftmaxInPlace = 4,
                       kGradientsInPlace = 8, kHoldsOutputs = 16, kHoldsOperands = 32;

struct OpRow {
  OpType type = OpType::kOther;
  AttributeInfo attributes[14] = {};  // the attributes of every op of the type, in order
  // A signature's pattern. {NAME} stands for the value of an attribute, {?NAME} for " NAME=VALUE",
  // or for nothing if the op lacks the attribute.
  std::string_view geometry = "elements={elements}";
  OpStep forward{}, backward{}, update{};

  Library library = Library::kNone;
  bool algorithms = false;     // the library offers several algorithms for each slot
  bool deterministic = true;   // false: depends on the algorithm
  bool cheap = false;          // to recompute; not a checkpoint of SuperNeurons (section 3.4)
  bool training_only = false;  // in inference the layer passes on its input
  LayerGroup group = LayerGroup::kNone;
  bool convolves = false;  // see `Convolves`
  bool products = false;   // multiplies matrices, in the arithmetic of its slots
  bool gathers = false;    // forward reads only as much of the weight as y is large
  // Automatic mixed precision leaves the layer's output, parameters and statistics in float32.
  bool stays_fp32 = false;
  bool on_gpu = true;  // the CUDA backend has a kernel

  // The rules under which forward writes y over x, backward writes dx over the incoming gradient,
  // and backward keeps x or y alive without reading it. Backward always keeps the tensors that it
  // reads.
  Rules overwrites_x = 0, overwrites_dy = 0, holds_x = 0, holds_y = 0;

  std::span<const AttributeInfo> attribute_list() const;
  const OpStep& step(Phase phase) const;
  // Returns true iff a backend executes ops of this type. Ops of other types have at most recorded
  // costs.
  bool executable() const { return forward.exists() || update.exists(); }
};

extern const std::array<OpRow, kOpTypeCount> kOpTable;  // by type
inline const OpRow& RowOf(OpType type) { return kOpTable[Index(type)]; }
// Returns the step of the op, which does not exist if no backend executes it. The ops of recorded
// traces have other operands than the rows say, and costs in place of kernels.
const OpStep& StepOf(const Op& op);

// Returns true iff the op is a convolution for policies that offload only convolutions. Products of
// matrices on sequences take the place of convolutions: linear layers, and the products of
// attention unless it is one op.
bool Convolves(const Op& op);

// Returns the number of positions in each sample that the op treats alike: 1 unless it works on
// sequences.
int64_t PositionsOf(const Op& op);

// Returns true iff the condition holds for the op.
bool Holds(const Op& op, std::string_view when);

// Return the index of an operand in op.inputs or op.outputs. `part` counts the repetitions of a
// list that repeats. Return nullopt if, by the row and the op's attributes, the op has no such
// operand.
std::optional<size_t> InputIndex(const Op& op, Role role, size_t part = 0);
std::optional<size_t> OutputIndex(const Op& op, Role role, size_t part = 0);
// Return the operand itself, or nullopt if there is none or the op's list is too short.
std::optional<TensorId> FindInput(const Op& op, Role role);
std::optional<TensorId> FindOutput(const Op& op, Role role);
// Returns the role of outputs[i], or `kNone` if the row does not say.
Role OutputRole(const Op& op, size_t i);

// Returns the signature of a slot: "conv2d.fwd in=64x224x224 ...". Throws `InputError` if an
// attribute is missing.
std::string SignatureOf(const Op& op, const OpSlot& slot);

// Throws an `InputError` that lists the executable types if no backend executes ops of this type
// and phase. `backend` is the name of the backend in the message.
void RequireExecutable(const Op& op, std::string_view backend);
// Throws an `InputError` if the CUDA backend has no kernel for this op.
void RequireExecutableOnGpu(const Op& op);

// Returns the number of parameters of an update with this many operands. Throws `InputError` if the
// operands do not make up a whole number of parameters.
size_t ParameterCount(const Op& op, size_t inputs, size_t outputs);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_OPS_OP_TABLE_H_
