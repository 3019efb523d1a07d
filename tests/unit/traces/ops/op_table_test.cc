#include "traces/ops/op_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "tests/testing/files.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::array kPhases{Phase::kForward, Phase::kBackward, Phase::kUpdate};

Op OpWith(OpType type, Phase phase, std::vector<Attribute> attributes, size_t inputs = 0) {
  Op op;
  op.name = "op";
  op.type = type;
  op.phase = phase;
  op.inputs.resize(inputs);
  op.attributes = std::move(attributes);
  return op;
}

// Returns the attributes that a condition uses or, if `braces`, that a text names in braces.
std::set<std::string> NamesIn(std::string_view text, bool braces) {
  std::set<std::string> names;
  std::string name;
  bool inside = !braces;
  for (const char c : std::string(text) + "&") {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '*';
    if (inside && letter) name += c;
    if (!letter && !name.empty()) names.insert(std::exchange(name, ""));
    if (braces && (c == '{' || c == '}')) inside = c == '{';
  }
  return names;
}

TEST(OpTableTest, NamesAreUnique) {
  const std::set<std::string_view> types(kOpTypeNames.begin(), kOpTypeNames.end());
  EXPECT_EQ(types.size(), kOpTypeNames.size());
  const std::set<std::string_view> roles(kRoleNames.begin(), kRoleNames.end());
  EXPECT_EQ(roles.size(), kRoleNames.size());
  EXPECT_EQ(kOpTypeNames.back(), "other");  // one name for each enumerator
  EXPECT_EQ(Name(Role::kStep), kRoleNames.back());
  for (const Role role : {Role::kX, Role::kX2, Role::kX3, Role::kY, Role::kWeight, Role::kBias}) {
    EXPECT_EQ(Name(GradientOf(role)), fmt::format("d{}", Name(role)));
  }
}

// A row uses only operands and attributes that ops of its type have.
TEST(OpTableTest, EveryRowIsComplete) {
  for (const OpRow& row : kOpTable) {
    SCOPED_TRACE(Name(row.type));
    // The other types occur only in recorded traces.
    const bool known = row.type != OpType::kInput && row.type != OpType::kConvolution &&
                       row.type != OpType::kMatmul && row.type != OpType::kOther;
    EXPECT_EQ(row.executable(), known);
    // Rows are gathered only in inference.
    EXPECT_EQ(row.forward.exists() && row.type != OpType::kRows, row.backward.exists());
    EXPECT_NE(row.forward.exists(), row.update.exists() || !known);
    EXPECT_TRUE(row.deterministic || row.algorithms);
    EXPECT_TRUE(!row.algorithms || row.library != Library::kNone);
    std::set<std::string> attributes{"needs_dx", "fused_update"};
    for (const AttributeInfo& info : row.attribute_list()) {
      EXPECT_TRUE(attributes.emplace(info.name).second) << info.name;
    }
    for (const Phase phase : kPhases) {
      const OpStep& step = row.step(phase);
      if (!step.exists()) continue;
      std::set<std::string> asked = NamesIn(row.geometry, true);
      asked.merge(NamesIn(step.whole_batch, false));
      for (const OpSlot& slot : step.slots) {
        asked.merge(NamesIn(slot.when, false));
        asked.merge(NamesIn(slot.detail, true));
      }
      for (const OperandList* list : {&step.inputs, &step.outputs}) {
        EXPECT_FALSE(list->span().empty());
        std::set<Role> roles;
        for (const Operand& operand : list->span()) {
          EXPECT_TRUE(roles.insert(operand.role).second) << Name(operand.role);
          asked.merge(NamesIn(operand.when, false));
        }
      }
      asked.erase(std::string(kNever));
      for (const std::string& name : asked) {
        EXPECT_TRUE(attributes.contains(name) || name == step.mode) << name;
      }
    }
    // Each input of backward is the gradient dy or an operand of forward.
    for (const Operand& operand : row.backward.inputs.span()) {
      const Role role = operand.role;
      EXPECT_TRUE(role == Role::kDy || row.forward.inputs.Has(role) ||
                  row.forward.outputs.Has(role))
          << Name(role);
    }
  }
}

TEST(OpTableTest, ConditionsAreConjunctionsOfFlags) {
  const Op op = OpWith(OpType::kConv2d, Phase::kBackward, {{"a", 1}, {"b", 0}, {"c", -2}});
  for (const auto when : {"", "a", "c", "a&c", "!b", "!missing", "a&!b&c"}) {
    EXPECT_TRUE(Holds(op, when)) << when;
  }
  for (const auto when : {"b", "missing", "!a", "a&b", "b&a", "a&!c", "never"}) {
    EXPECT_FALSE(Holds(op, when)) << when;
  }
}

TEST(OpTableTest, OperandsAreFoundByRole) {
  const auto conv = [](double needs_dx, double fused, double bias) {
    return OpWith(OpType::kConv2d, Phase::kBackward,
                  {{"needs_dx", needs_dx}, {"fused_update", fused}, {"bias", bias}}, 3);
  };
  EXPECT_EQ(InputIndex(conv(1, 0, 1), Role::kDy), 2);
  EXPECT_EQ(InputIndex(conv(1, 1, 1), Role::kBias), 3);
  EXPECT_EQ(InputIndex(conv(1, 0, 1), Role::kBias), std::nullopt);
  EXPECT_EQ(InputIndex(conv(1, 1, 0), Role::kBias), std::nullopt);
  EXPECT_EQ(OutputIndex(conv(1, 0, 1), Role::kDbias), 2);
  EXPECT_EQ(OutputIndex(conv(0, 0, 1), Role::kDbias), 1);
  EXPECT_EQ(OutputIndex(conv(0, 0, 1), Role::kDx), std::nullopt);
  EXPECT_EQ(OutputRole(conv(0, 0, 1), 1), Role::kDbias);
  EXPECT_EQ(OutputRole(conv(0, 0, 0), 1), Role::kNone);
  EXPECT_EQ(FindInput(conv(1, 1, 1), Role::kDy), TensorId{0});
  // The op has three inputs, not four.
  EXPECT_EQ(FindInput(conv(1, 1, 1), Role::kBias), std::nullopt);

  const Op sgd = OpWith(OpType::kSgd, Phase::kUpdate, {});
  EXPECT_EQ(InputIndex(sgd, Role::kMomentum, 2), 8);
  EXPECT_EQ(OutputIndex(sgd, Role::kMomentum, 2), 5);
  EXPECT_EQ(OutputRole(sgd, 3), Role::kMomentum);
  EXPECT_EQ(ParameterCount(sgd, 9, 6), 3);
  EXPECT_THROW(ParameterCount(sgd, 9, 5), InputError);
  EXPECT_THROW(ParameterCount(sgd, 8, 6), InputError);
}

TEST(OpTableTest, WhatNoBackendExecutesIsRefused) {
  EXPECT_NO_THROW(RequireExecutable(OpWith(OpType::kRelu, Phase::kForward, {}), "CPU"));
  for (const auto& [type, phase, named] :
       {std::tuple{OpType::kOther, Phase::kForward, "other ops"},
        std::tuple{OpType::kInput, Phase::kBackward, "input ops"},
        std::tuple{OpType::kSgd, Phase::kForward, "forward sgd ops"},
        std::tuple{OpType::kRelu, Phase::kUpdate, "update relu ops"}}) {
    const Op op = OpWith(type, phase, {});
    const std::string error = testing::InputErrorOf([&] { RequireExecutable(op, "CPU"); });
    EXPECT_THAT(error, HasSubstr(fmt::format("the CPU backend cannot execute {}; supported: "
                                             "conv2d, linear",
                                             named)));
    EXPECT_THAT(error, ::testing::Not(HasSubstr("other, ")));
  }
}

TEST(OpTableTest, SignaturesAreTheGeometry) {
  const auto sign = [](OpType type, Phase phase, std::vector<Attribute> attributes) {
    const Op op = OpWith(type, phase, std::move(attributes));
    return SignatureOf(op, StepOf(op).slots[0]);
  };
  EXPECT_EQ(sign(OpType::kLinear, Phase::kBackward,
                 {{"in_features", 25088},
                  {"out_features", 4096},
                  {"bias", 1},
                  {"needs_dx", 1},
                  {"fused_update", 1}}),
            "linear.bwd in=25088 out=4096 bias=1 dx=1 fused=1");
  EXPECT_EQ(sign(OpType::kConcat, Phase::kForward,
                 {{"parts", 2}, {"height", 7}, {"width", 9}, {"channels_0", 3}, {"channels_1", 5}}),
            "concat.fwd plane=7x9 channels=3+5");
  EXPECT_EQ(sign(OpType::kSgd, Phase::kUpdate, {{"elements", 1728}}), "sgd.update elements=1728");
  EXPECT_EQ(sign(OpType::kSoftmaxLoss, Phase::kForward, {{"elements", 10}}),
            "softmax_loss.fwd elements=10");
  EXPECT_EQ(sign(OpType::kSoftmaxLoss, Phase::kForward, {{"elements", 10}, {"rows", 3}}),
            "softmax_loss.fwd elements=10 rows=3");
  EXPECT_THAT(testing::InputErrorOf([&] { sign(OpType::kRelu, Phase::kForward, {}); }),
              HasSubstr("op 'op' (relu) lacks the attribute 'elements'"));
}

// The operands of an op of a recorded trace are not those of the row.
TEST(OpTableTest, NoBackendExecutesARecordedOp) {
  Op op = OpWith(OpType::kAttention, Phase::kForward, {});
  EXPECT_TRUE(StepOf(op).exists());
  op.recorded.emplace();
  EXPECT_FALSE(StepOf(op).exists());
  EXPECT_THROW(RequireExecutable(op, "CPU"), InputError);
}

TEST(OpTableTest, TheGpuExecutesOpsOnSequences) {
  for (const auto& [type, phase] : {std::pair{OpType::kLinear, Phase::kForward},
                                    std::pair{OpType::kAttention, Phase::kBackward},
                                    std::pair{OpType::kAdamW, Phase::kUpdate}}) {
    EXPECT_NO_THROW(RequireExecutableOnGpu(OpWith(type, phase, {{"rows", 3}})));
  }
  EXPECT_THAT(testing::InputErrorOf(
                  [] { RequireExecutableOnGpu(OpWith(OpType::kMatmul, Phase::kForward, {})); }),
              HasSubstr("the CUDA backend cannot execute matmul ops"));
}

// Policies that offload for convolutions offload for these.
TEST(OpTableTest, ProductsOnSequencesCountAsConvolutions) {
  for (const OpType type : {OpType::kConv2d, OpType::kAttentionScores, OpType::kAttentionValues,
                            OpType::kConvolution, OpType::kMatmul}) {
    EXPECT_TRUE(Convolves(OpWith(type, Phase::kForward, {}))) << Name(type);
  }
  EXPECT_TRUE(Convolves(OpWith(OpType::kLinear, Phase::kForward, {{"rows", 3}})));
  for (const OpType type : {OpType::kLinear, OpType::kAttention, OpType::kAdd}) {
    EXPECT_FALSE(Convolves(OpWith(type, Phase::kForward, {}))) << Name(type);
  }
}

// Checks a lowered op against its row.
class LoweredOp {
 public:
  LoweredOp(const Trace& trace, const Op& op) : trace_(trace), op_(op) {}

  void Check() const {
    const OpRow& row = RowOf(op_.type);
    ASSERT_TRUE(StepOf(op_).exists());
    const auto accumulated = static_cast<uint64_t>(op_.FindAttribute("accumulate").value_or(0));
    const size_t behind = static_cast<size_t>(std::popcount(accumulated)) +
                          (op_.Flag("holds_x") ? 1 : 0) + (op_.Flag("holds_y") ? 1 : 0);
    CheckOperands(StepOf(op_).inputs, op_.inputs, op_.inputs.size() - behind);
    CheckOperands(StepOf(op_).outputs, op_.outputs, op_.outputs.size());
    CheckAttributes(row);
    std::vector<std::string_view> slots;
    for (const OpSlot& slot : StepOf(op_).slots) {
      if (!slot.name.empty() && Holds(op_, slot.when)) slots.push_back(slot.name);
    }
    ASSERT_EQ(op_.slots.size(), slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_EQ(op_.slots[i].name, slots[i]);
      EXPECT_THAT(op_.slots[i].signature,
                  ::testing::StartsWith(fmt::format("{}.{} ", Name(op_.type), slots[i])));
    }
  }

 private:
  // Checks the number of operands and that each tensor fits the role of its operand.
  void CheckOperands(const OperandList& list, const std::vector<TensorId>& ids,
                     size_t count) const {
    std::vector<Role> roles;
    for (const Operand& operand : list.span()) {
      if (Holds(op_, operand.when)) roles.push_back(operand.role);
    }
    if (list.repeats) {
      ASSERT_EQ(count % roles.size(), 0);
      EXPECT_EQ(op_.FindAttribute("parts").value_or(static_cast<double>(count)), count);
    } else {
      ASSERT_EQ(count, roles.size());
    }
    for (size_t i = 0; i < count; ++i) {
      const Tensor& tensor = trace_.tensor(ids[i]);
      const Role role = roles[i % roles.size()];
      const std::string suffix = "." + std::string(Name(role));
      EXPECT_TRUE(IsOf(role, suffix, tensor)) << tensor.name << " as " << Name(role);
    }
  }

  bool IsOf(Role role, const std::string& suffix, const Tensor& tensor) const {
    using enum TensorKind;
    switch (role) {
      case Role::kX:
      case Role::kX2:
      case Role::kX3:
      case Role::kY:
        return tensor.kind == kActivation || tensor.kind == kInput;
      case Role::kDx:
      case Role::kDx2:
      case Role::kDx3:
      case Role::kDy:
        return tensor.kind == kGradient;
      case Role::kLabels:
      case Role::kLoss:
      case Role::kSquareSum:
        return tensor.name.starts_with(Name(role));  // a number may follow
      case Role::kDweight:
      case Role::kDbias:  // if fused, the parameter itself
        return tensor.kind == (op_.Flag("fused_update") ? kParameter : kParameterGradient);
      case Role::kParameter:
        return tensor.kind == kParameter;
      case Role::kGradient:
        return tensor.kind == kParameterGradient;
      case Role::kMaster:
      case Role::kMomentum:
      case Role::kSecondMoment:
      case Role::kStep:
        return tensor.kind == kOptimizerState;
      case Role::kIndices:
        return tensor.kind == kInput && tensor.dtype == DataType::kInt32;
      default:
        return tensor.name.ends_with(suffix);
    }
  }

  // Checks that the row's attributes come first, in its order, followed by the attributes of the
  // phase.
  void CheckAttributes(const OpRow& row) const {
    std::vector<std::string> expected;
    for (const AttributeInfo& info : row.attribute_list()) {
      for (int64_t part = 0; info.name.ends_with('*') && part < op_.IntAttribute("parts"); ++part) {
        expected.push_back(fmt::format("{}{}", info.name.substr(0, info.name.size() - 1), part));
      }
      const bool lacks = info.kind == AttributeKind::kOptional && !op_.FindAttribute(info.name);
      if (!info.name.ends_with('*') && !lacks) expected.emplace_back(info.name);
    }
    if (!StepOf(op_).mode.empty()) expected.emplace_back(StepOf(op_).mode);
    ASSERT_LE(expected.size(), op_.attributes.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(op_.attributes[i].name, expected[i]);
    const std::set<std::string> common{"needs_dx",      "accumulate", "fused_update",
                                       "learning_rate", "holds_x",    "holds_y"};
    for (size_t i = expected.size(); i < op_.attributes.size(); ++i) {
      const std::string& name = op_.attributes[i].name;
      const bool adds = op_.type == OpType::kSquareSum && name == "accumulate";
      EXPECT_TRUE(adds || (op_.phase == Phase::kBackward && common.contains(name))) << name;
    }
    for (const AttributeInfo& info : row.attribute_list()) {
      if (info.kind == AttributeKind::kNumber || info.name.ends_with('*')) continue;
      if (info.kind == AttributeKind::kOptional && !op_.FindAttribute(info.name)) continue;
      const int64_t value = op_.IntAttribute(info.name);
      EXPECT_TRUE(info.kind != AttributeKind::kFlag || value == 0 || value == 1) << info.name;
    }
  }

  const Trace& trace_;
  const Op& op_;
};

TEST(OpTableTest, LoweredOpsAreAsTheirRowsSay) {
  std::set<std::pair<OpType, Phase>> seen;
  // These contain ops that the zoo lacks.
  std::vector<Network> networks{testing::Dense(), testing::Gpt()};
  for (const ZooEntry& entry : Zoo()) networks.push_back(BuildNetwork(entry.name));
  for (const Network& network : networks) {
    for (const Preset& preset : Presets()) {
      for (const bool training : {true, false}) {
        const Trace trace = LowerNetwork(network, {2, preset.name, training});
        for (const Op& op : trace.ops) {
          seen.emplace(op.type, op.phase);
          SCOPED_TRACE(fmt::format("{}, {}, {}", network.name(), preset.name, op.name));
          LoweredOp(trace, op).Check();
          if (HasFailure()) return;
        }
      }
    }
  }
  for (const OpType optimizer : {OpType::kAdam, OpType::kAdamW}) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      LoweringOptions options{2, "torch", true, optimizer, precision};
      for (const bool in_parts : {false, true}) {
        if (in_parts) options.accumulate = options.loss_chunks = 2;
        if (in_parts) options.clip_norm = 1;
        const Trace trace = LowerNetwork(testing::Gpt(), options);
        for (const Op& op : trace.ops) {
          seen.emplace(op.type, op.phase);
          SCOPED_TRACE(op.name);
          LoweredOp(trace, op).Check();
        }
      }
    }
  }
  // Every row has been seen except kRows, which only policies insert. `traces/FORMAT.md` describes
  // every row.
  for (const Phase phase : kPhases) seen.emplace(OpType::kRows, phase);
  const std::string format = ReadFile(testing::InSource("traces/FORMAT.md"));
  for (const OpRow& row : kOpTable) {
    for (const Phase phase : kPhases) {
      if (!row.step(phase).exists()) continue;
      EXPECT_TRUE(seen.contains({row.type, phase})) << Name(row.type);
      EXPECT_THAT(format, HasSubstr(fmt::format("\n| `{}` | {}", Name(row.type), Name(phase))));
    }
  }
}

// An update rule is a row. The trace has the operands that the row names, with its coefficients.
TEST(OpTableTest, TheUpdateIsTheRuleOfThePreset) {
  const Trace trace = LowerNetwork(BuildNetwork("alexnet"), {2, "torch", true});
  const auto update = std::ranges::find(trace.ops, FindPreset("torch").update_rule, &Op::type);
  ASSERT_NE(update, trace.ops.end());
  EXPECT_EQ(update->NumberAttribute("learning_rate"), 0.01);
  EXPECT_EQ(update->NumberAttribute("momentum"), 0.9);
  const auto state = FindInput(*update, Role::kMomentum);
  ASSERT_TRUE(state);
  EXPECT_EQ(trace.tensor(*state).name, "conv1.weight_momentum");
  EXPECT_EQ(state, FindOutput(*update, Role::kMomentum));
}

}  // namespace
}  // namespace spillway::testing
