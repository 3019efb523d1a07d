#include "traces/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::HasSubstr;

// x -> relu -> y
Trace SmallTrace() {
  Trace trace;
  trace.name = "small";
  trace.layers = {{"relu", OpType::kRelu}};
  trace.tensors = {{"x", TensorKind::kInput, {2, 3}, Bytes(24), {}},
                   {"y", TensorKind::kActivation, {2, 3}, Bytes(24), {}}};
  Op op;
  op.name = "relu.fwd";
  op.type = OpType::kRelu;
  op.inputs = {TensorId{0}};
  op.outputs = {TensorId{1}};
  op.slots = {{"fwd", "relu.fwd elements=3", 6, Bytes(48)}};
  op.attributes = {{"elements", 3}};
  trace.ops = {op};
  return trace;
}

template <typename Change>
std::string ErrorAfter(const Change& change) {
  Trace trace = SmallTrace();
  change(trace);
  return InputErrorOf([&] { trace.Validate(); });
}

TEST(TraceTest, SmallTraceIsValid) { SmallTrace().Validate(); }

TEST(TraceTest, NamesGoThereAndBack) {
  for (const std::string_view name : TensorKindNames()) {
    EXPECT_EQ(Name(ParseTensorKind(name).value()), name);
  }
  for (const std::string_view name : OpTypeNames())
    EXPECT_EQ(Name(ParseOpType(name).value()), name);
  for (const std::string_view name : PhaseNames()) EXPECT_EQ(Name(ParsePhase(name).value()), name);
  EXPECT_EQ(TensorKindNames().size(), 7);
  EXPECT_EQ(OpTypeNames().size(), 35);
  EXPECT_EQ(Name(OpType::kOther), "other");
  EXPECT_EQ(Name(TensorKind::kScratch), "scratch");
  EXPECT_EQ(Name(Phase::kUpdate), "update");
  EXPECT_EQ(ParseOpType("conv3d"), std::nullopt);
}

TEST(TraceTest, AttributesAsIntegers) {
  Op op = SmallTrace().ops[0];
  op.attributes = {{"n", 3}, {"big", 9007199254740992.0}, {"half", 0.5}, {"huge", 1e300}};
  EXPECT_EQ(op.IntAttribute("n"), 3);
  EXPECT_EQ(op.IntAttribute("big"), int64_t{1} << 53);
  EXPECT_EQ(InputErrorOf([&] { op.IntAttribute("groups"); }),
            "op 'relu.fwd' (relu) lacks the attribute 'groups'");
  EXPECT_EQ(InputErrorOf([&] { op.IntAttribute("half"); }),
            "op 'relu.fwd' (relu): the attribute 'half' is 0.5, expected an integer");
  EXPECT_THAT(InputErrorOf([&] { op.IntAttribute("huge"); }), HasSubstr("1e+300"));
  EXPECT_EQ(op.FindAttribute("groups"), std::nullopt);
}

TEST(TraceTest, RootIsTheEndOfTheChain) {
  Trace trace = SmallTrace();
  trace.tensors.push_back({"z", TensorKind::kActivation, {}, Bytes(8), TensorId{1}});
  trace.tensors[1].alias_of = TensorId{0};
  trace.Validate();
  EXPECT_EQ(trace.Root(TensorId{2}), TensorId{0});
  EXPECT_EQ(trace.Root(TensorId{0}), TensorId{0});
}

TEST(TraceTest, AnAliasIsWrittenWithItsRoot) {
  Trace trace = SmallTrace();
  trace.tensors.push_back({"z", TensorKind::kActivation, {}, Bytes(24), TensorId{1}});
  Op op = trace.ops[0];
  op.name = "second";
  op.inputs = {TensorId{2}};
  trace.ops.push_back(op);
  trace.Validate();
  std::swap(trace.ops[0], trace.ops[1]);
  EXPECT_EQ(InputErrorOf([&] { trace.Validate(); }),
            "trace 'small': op 'second' reads tensor 'z' before any op has written it");
}

TEST(TraceTest, AViewLiesInItsStorage) {
  Trace trace = SmallTrace();
  trace.tensors.push_back({"view", TensorKind::kActivation, {3}, Bytes(12), TensorId{1}, {}});
  trace.tensors.push_back({"inner", TensorKind::kActivation, {1}, Bytes(4), TensorId{2}, {}});
  trace.tensors[2].offset = Bytes(12);
  trace.tensors[3].offset = Bytes(8);
  trace.Validate();
  EXPECT_EQ(trace.OffsetInStorage(TensorId{3}), Bytes(20));
  trace.tensors[3].offset = Bytes(12);
  EXPECT_EQ(InputErrorOf([&] { trace.Validate(); }),
            "trace 'small': tensor 'inner' reaches beyond 'y', whose storage it shares");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].offset = Bytes(4); }),
            "trace 'small': tensor 'y' has an offset, but neither alias_of nor part_of");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].offset = Bytes(-4); }),
            "trace 'small': tensor 'y' has the offset -4, expected 0 to 2^60");
}

TEST(TraceTest, RecordedCostsAndHolds) {
  Trace good = SmallTrace();
  good.recording = {"PyTorch", "GPU", Duration::Nanoseconds(9), Duration(), Bytes(8), Bytes(8)};
  good.ops[0].recorded = RecordedCost{Duration::Nanoseconds(9), Duration(), Duration(), Bytes()};
  good.ops.push_back(good.ops[0]);
  good.ops[1].name = "second";
  good.tensors.push_back({"z", TensorKind::kActivation, {}, Bytes(24), TensorId{1}});
  good.tensors[1].held_until = OpId{1};
  good.Validate();
  struct Case {
    std::function<void(Trace&)> change;
    const char* error;
  };
  for (const Case& test : {
           Case{[](Trace& t) { t.tensors[1].held_until = OpId{0}; },
                "op 'second' uses tensor 'y', which is held until 'relu.fwd' only"},
           Case{[](Trace& t) {
                  t.tensors[1].held_until = OpId{0};
                  t.ops[1].inputs = {};
                  t.ops[1].outputs = {TensorId{2}};
                },
                "op 'second' uses tensor 'z', which is held until 'relu.fwd' only"},
           Case{[](Trace& t) { t.tensors[1].held_until = OpId{2}; },
                "tensor 'y' is held until an op that does not exist"},
           Case{[](Trace& t) { t.tensors[2].held_until = OpId{1}; },
                "tensor 'z' has held_until, but shares the storage of 'y'"},
           Case{[](Trace& t) { t.recording.reset(); },
                "op 'relu.fwd' has a recorded cost, but the trace has no recording"},
           Case{[](Trace& t) { t.ops[1].recorded.reset(); },
                "op 'second' has no recorded cost, but the trace has a recording"},
           Case{[](Trace& t) { t.ops[1].recorded->gap = Duration::Nanoseconds(-1); },
                "the recorded times are negative or exceed 53 days"},
           Case{[](Trace& t) { t.ops[1].recorded->host = Duration::Picoseconds(int64_t{1} << 62); },
                "the recorded times are negative or exceed 53 days"},
           Case{[](Trace& t) { t.ops[1].recorded->workspace = Bytes(-1); },
                "op 'second' has a recorded workspace of -1 bytes, expected 0 to 2^60"},
           Case{[](Trace& t) { t.recording->reserved = Bytes(-1); },
                "the recording has a peak of -1 bytes, expected 0 to 2^60"},
       }) {
    Trace trace = good;
    test.change(trace);
    EXPECT_EQ(InputErrorOf([&] { trace.Validate(); }), std::string("trace 'small': ") + test.error);
  }
}

TEST(TraceTest, APartIsOfSomethingThatNoOpUses) {
  Trace good = SmallTrace();
  good.tensors.push_back({"w", TensorKind::kParameter, {4}, Bytes(16)});
  good.tensors.push_back({"part", TensorKind::kParameter, {1}, Bytes(4), {}, TensorId{2}});
  good.tensors[3].offset = Bytes(12);
  good.ops[0].inputs.push_back(TensorId{3});
  good.Validate();
  EXPECT_THAT(good.Wholes(), ::testing::ElementsAre(false, false, true, false));
  const auto error_after = [&](const auto& change) {
    Trace trace = good;
    change(trace);
    return InputErrorOf([&] { trace.Validate(); });
  };
  EXPECT_EQ(error_after([](Trace& t) { t.ops[0].inputs.push_back(TensorId{2}); }),
            "trace 'small': op 'relu.fwd' uses tensor 'w', which has parts");
  EXPECT_EQ(error_after([](Trace& t) { t.tensors[3].offset = Bytes(13); }),
            "trace 'small': tensor 'part' reaches beyond 'w', which it is a part of");
  EXPECT_EQ(error_after([](Trace& t) { t.tensors[3].part_of = TensorId{0}; }),
            "trace 'small': tensor 'part' is a part of 'x'; expected one of the same kind, "
            "input, parameter or optimizer_state, that is neither an alias nor a part");
  EXPECT_EQ(error_after([](Trace& t) { t.tensors[3].part_of = TensorId{9}; }),
            "trace 'small': tensor 'part' is a part of a tensor that does not exist");
  EXPECT_EQ(error_after([](Trace& t) { t.tensors[3].alias_of = TensorId{2}; }),
            "trace 'small': tensor 'part' has both alias_of and part_of");
}

TEST(TraceTest, RefusesBadNames) {
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.layers.push_back(t.layers[0]); }),
            "trace 'small': duplicate layer 'relu'");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.layers[0].name = ""; }),
            "trace 'small': layer 0 has no name");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].name = "x"; }),
            "trace 'small': duplicate tensor 'x'");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].name = ""; }),
            "trace 'small': tensor 1 has no name");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops.push_back(t.ops[0]); }),
            "trace 'small': duplicate op 'relu.fwd'");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].name = ""; }), "trace 'small': op 0 has no name");
}

TEST(TraceTest, RefusesBadTensors) {
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[0].size = Bytes(-1); }),
            "trace 'small': tensor 'x' has the negative size -1");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[0].shape = {-1}; }),
            "trace 'small': tensor 'x' has a negative extent");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.tensors[0].shape = {1 << 30, 1 << 30, 2};
            }),
            "trace 'small': tensor 'x' is too large");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[0].size = Bytes::Unlimited(); }),
            "trace 'small': the sizes of all tensors together exceed 2^60");
}

TEST(TraceTest, SumsAreTight) {
  Trace trace = SmallTrace();
  trace.tensors[0].size = Bytes::Unlimited() - Bytes(24);
  trace.ops[0].slots[0].flops = int64_t{1} << 60;
  trace.Validate();
  trace.ops[0].slots.push_back({"bwd", "s", 1, Bytes(0)});
  EXPECT_EQ(InputErrorOf([&] { trace.Validate(); }),
            "trace 'small': the flops of all ops together exceed 2^60");
}

TEST(TraceTest, RefusesBadAliases) {
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].alias_of = TensorId{2}; }),
            "trace 'small': tensor 'y' aliases a tensor that does not exist");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[1].alias_of = TensorId{1}; }),
            "trace 'small': tensor 'y' is in a cycle of aliases");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.tensors[0].alias_of = TensorId{1};
              t.tensors[1].alias_of = TensorId{0};
            }),
            "trace 'small': tensor 'x' is in a cycle of aliases");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.tensors[1].alias_of = TensorId{0};
              t.tensors[1].size = Bytes(25);
            }),
            "trace 'small': tensor 'y' is larger than 'x', whose storage it shares");
}

TEST(TraceTest, LongAliasChainsTakeLinearTime) {
  Trace trace = SmallTrace();
  for (uint32_t i = 2; i < 200'000; ++i) {
    trace.tensors.push_back(
        {"t" + std::to_string(i), TensorKind::kActivation, {}, Bytes(0), TensorId{i - 1}});
  }
  trace.Validate();
}

TEST(TraceTest, RefusesBadOps) {
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.batch = 0; }),
            "trace 'small': batch is 0, expected at least 1");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].layer = LayerId{1}; }),
            "trace 'small': op 'relu.fwd' names layer 1, expected less than 1");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].batch = 0; }),
            "trace 'small': op 'relu.fwd' has batch 0");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].slots.clear(); }),
            "trace 'small': op 'relu.fwd' has no slots");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].slots[0].flops = -1; }),
            "trace 'small': op 'relu.fwd', slot 'fwd': negative flops or traffic");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].outputs = {TensorId{2}}; }),
            "trace 'small': op 'relu.fwd' names tensor 2, expected less than 2");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].inputs = {TensorId{1}}; }),
            "trace 'small': op 'relu.fwd' reads tensor 'y' before any op has written it");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.tensors[0].kind = TensorKind::kScratch; }),
            "trace 'small': op 'relu.fwd' reads tensor 'x' as an input, but its kind is scratch");
  EXPECT_EQ(ErrorAfter([](Trace& t) { t.ops[0].scratch = {TensorId{1}}; }),
            "trace 'small': op 'relu.fwd' lists tensor 'y' as scratch, but its kind is activation");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.ops[0].phase = Phase::kBackward;
              t.ops[0].recomputable = true;
            }),
            "trace 'small': op 'relu.fwd' is recomputable but not a forward op");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.ops[0].attributes.push_back({"elements", 4});
            }),
            "trace 'small': op 'relu.fwd' has the attribute 'elements' twice");
  EXPECT_EQ(ErrorAfter([](Trace& t) {
              t.ops[0].attributes[0].value = std::numeric_limits<double>::infinity();
            }),
            "trace 'small': op 'relu.fwd': the attribute 'elements' is not finite");
}

// relu.fwd, then other.fwd on lane 1
Trace TraceWithLanes() {
  Trace trace = SmallTrace();
  Op op = trace.ops[0];
  op.name = "other.fwd";
  op.lane = 1;
  op.after = {OpId{0}};
  trace.ops.push_back(op);
  return trace;
}

TEST(TraceTest, RefusesBadLanes) {
  TraceWithLanes().Validate();
  const auto error_after = [](const auto& change) {
    Trace trace = TraceWithLanes();
    change(trace.ops[1]);
    return InputErrorOf([&] { trace.Validate(); });
  };
  EXPECT_THAT(error_after([](Op& op) { op.lane = kMaxLanes; }),
              HasSubstr("op 'other.fwd' runs on lane 5, expected 0 to 4"));
  EXPECT_THAT(error_after([](Op& op) { op.lane = 0; }),
              HasSubstr("op 'other.fwd' waits for 'relu.fwd', which runs on its own lane"));
  EXPECT_THAT(error_after([](Op& op) { op.after = {OpId{1}}; }),
              HasSubstr("op 'other.fwd' waits for op 1, which does not run before it"));
  EXPECT_THAT(error_after([](Op& op) {
                op.after = {OpId{0}, OpId{0}};
              }),
              HasSubstr("not in ascending order"));
  EXPECT_THAT(ErrorAfter([](Trace& trace) { trace.tensors[1].lane = 9; }),
              HasSubstr("tensor 'y' is of lane 9, expected 0 to 4"));
}

TEST(TraceTest, WaitsMoveWithTheirOps) {
  Trace trace = TraceWithLanes();
  Op first = trace.ops[0];
  first.name = "new.fwd";
  trace.ops.insert(trace.ops.begin(), first);
  MoveWaits(std::array{OpId{1}, OpId{2}}, trace);
  EXPECT_EQ(trace.ops[2].after, std::vector{OpId{1}});
  trace.Validate();
  MoveWaits(std::array{OpId{0}, OpId{2}, OpId{1}}, trace);  // it would wait for itself
  EXPECT_TRUE(trace.ops[2].after.empty());
}

}  // namespace
}  // namespace spillway::testing
