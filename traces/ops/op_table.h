// The op table: what is known about each type of op, in one row.
//
// Lowering, cost models, policies and the backends that execute read it; none of them lists op
// types of its own. A condition (`when`) is the name of an attribute of the op, which is then not
// 0, or with '!' before it 0 or missing, or several joined by '&'; the empty one always holds.
// traces/FORMAT.md explains the operands, `spillway list ops` prints the table.

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

namespace spillway {

// What an operand is to its op. The gradient of something stands behind it.
enum class Role : uint8_t {
  kNone,
  kX,  // the layer's input
  kDx,
  kY,  // the layer's output
  kDy,
  kWeight,
  kDweight,  // with a fused update the parameter itself, as is kDbias
  kBias,
  kDbias,
  kMean,  // of the batch, by channel, like the three below
  kInvStd,
  kRunningMean,
  kRunningVar,
  kLabels,
  kLoss,
  kParameter,  // of an update, with its gradient
  kGradient,
  kMomentum,
};
inline constexpr std::array kRoleNames = std::to_array<std::string_view>(
    {"", "x", "dx", "y", "dy", "weight", "dweight", "bias", "dbias", "mean", "inv_std",
     "running_mean", "running_var", "labels", "loss", "parameter", "gradient", "momentum"});

constexpr size_t Index(Role role) { return static_cast<size_t>(role); }
constexpr std::string_view Name(Role role) { return kRoleNames[Index(role)]; }
constexpr Role GradientOf(Role role) { return static_cast<Role>(Index(role) + 1); }

// A condition that never holds: no op has an attribute of this name.
inline constexpr std::string_view kNever = "never";

struct Operand {
  Role role = Role::kNone;
  std::string_view when{};

  constexpr Operand() = default;
  constexpr Operand(Role r, std::string_view w = {}) : role(r), when(w) {}
};

// The operands of one direction in order. Behind the inputs of a backward step stand each dx that
// is added to, x of `holds_x` and y of `holds_y`, which are never read by their place.
struct OperandList {
  Operand operands[8];
  bool repeats = false;  // the list as a whole stands there once for each part or parameter

  std::span<const Operand> span() const;
  bool Has(Role role) const;
};

struct OpSlot {
  std::string_view name{};
  // Of one sample. Where there is none, the slot only copies inputs[0] to the outputs, and an
  // output that shares its storage costs nothing.
  int64_t (*flops)(const Op& op) = nullptr;
  std::string_view when{};
  std::string_view detail{};  // behind the geometry in the signature
};

struct OpStep {
  OperandList inputs;
  OperandList outputs;
  OpSlot slots[2];
  std::string_view whole_batch = kNever;  // when the step must not be split into micro-batches
  std::string_view mode{};                // a further attribute: whether this is a step of training

  bool exists() const { return !slots[0].name.empty(); }
};

enum class AttributeKind : uint8_t { kInteger, kNumber, kFlag };

struct AttributeInfo {
  std::string_view name{};  // "channels_*": one for each part
  AttributeKind kind = AttributeKind::kInteger;
  double initial = 0;  // of an update rule's coefficient

  constexpr AttributeInfo() = default;
  constexpr AttributeInfo(const char* n, AttributeKind k = AttributeKind::kInteger, double i = 0)
      : name(n), kind(k), initial(i) {}
};

// Whose kernels execute the ops of a type.
enum class Library : uint8_t {
  kNone,         // own kernels
  kConvolution,  // cuDNN: it takes hundreds of microseconds to find out what to launch, so a
                 // backend that can launches these ops from graphs
  kBlas,
};

// What a layer is to the papers that offload by kinds of layers (vDNN, section III-C).
enum class LayerGroup : uint8_t {
  kNone,
  kFeature,  // feature extraction
  kInPlace,  // works in place and is a part of the layer before it
};

// Rules of accounting that a preset has or not; lowering/preset.h says what each means.
using Rules = uint8_t;
inline constexpr Rules kReluInPlace = 1, kAddInPlace = 2, kSoftmaxInPlace = 4,
                       kGradientsInPlace = 8, kHoldsOutputs = 16, kHoldsOperands = 32;

struct OpRow {
  OpType type = OpType::kOther;
  AttributeInfo attributes[14] = {};                  // of every op of the type; in order
  std::string_view geometry = "elements={elements}";  // of a signature, {NAME} is an attribute
  OpStep forward{}, backward{}, update{};

  Library library = Library::kNone;
  bool algorithms = false;     // whether the library offers several for each slot
  bool deterministic = true;   // false: depends on the algorithm
  bool cheap = false;          // to rebuild: no checkpoint of SuperNeurons (section 3.4)
  bool training_only = false;  // in inference the layer hands on what it gets
  LayerGroup group = LayerGroup::kNone;
  bool convolves = false;  // to policies that offload convolutional layers and no others

  // Under which rules forward writes y over x, backward writes dx over what comes in, and backward
  // keeps x or y alive without reading it. What backward reads, it keeps anyway.
  Rules overwrites_x = 0, overwrites_dy = 0, holds_x = 0, holds_y = 0;

  std::span<const AttributeInfo> attribute_list() const;
  const OpStep& step(Phase phase) const;
  // Whether backends execute ops of this type; the others have recorded costs at most.
  bool executable() const { return forward.exists() || update.exists(); }
};

extern const std::array<OpRow, kOpTypeCount> kOpTable;  // by type
inline const OpRow& RowOf(OpType type) { return kOpTable[Index(type)]; }
inline const OpStep& StepOf(const Op& op) { return RowOf(op.type).step(op.phase); }

// Whether a condition holds for the op.
bool Holds(const Op& op, std::string_view when);

// Where an operand stands in op.inputs or op.outputs, `part` counting the repetitions of a list
// that repeats; nullopt if the row and the op's attributes say that there is none.
std::optional<size_t> InputIndex(const Op& op, Role role, size_t part = 0);
std::optional<size_t> OutputIndex(const Op& op, Role role, size_t part = 0);
// The operand itself, nullopt also if the op's list is too short.
std::optional<TensorId> FindInput(const Op& op, Role role);
std::optional<TensorId> FindOutput(const Op& op, Role role);
// What outputs[i] is; `kNone` if the row does not say.
Role OutputRole(const Op& op, size_t i);

// "conv2d.fwd in=64x224x224 ...". Throws `InputError` if an attribute is missing.
std::string SignatureOf(const Op& op, const OpSlot& slot);

// Throws `InputError` with the types that there are if no backend executes ops of this type and
// phase; `backend` stands in the message.
void RequireExecutable(const Op& op, std::string_view backend);

// The parameters of an update that has so many operands. Throws `InputError` if these are no whole
// number of parameters.
size_t ParameterCount(const Op& op, size_t inputs, size_t outputs);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_OPS_OP_TABLE_H_
