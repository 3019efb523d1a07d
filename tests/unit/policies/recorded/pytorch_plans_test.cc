#include "policies/recorded/pytorch_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "policies/recorded/as_recorded.h"
#include "policies/recorded/saved_tensors.h"
#include "tests/testing/fixtures.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Two blocks of two ops each, and a loss. Each activation has 10 bytes, the loss 1:
//
//   x --h.0/a--> a --h.0/b--> b --h.1/c--> c --h.1/d--> d --loss--> l
//
// Backward of an op reads the op's input and makes the gradient of it; b also reads the weight w.
Trace TwoBlocks() {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10).Tensor("w", TensorKind::kParameter, 4);
  for (const char* name : {"a", "b", "c", "d"}) {
    builder.Tensor(name, TensorKind::kActivation, 10);
    builder.Tensor(std::string("d") + name, TensorKind::kGradient, 10);
  }
  builder.Tensor("l", TensorKind::kActivation, 1);
  const auto op = [&](const char* name, Phase phase, std::initializer_list<std::string> inputs,
                      const char* output, const char* layer) {
    builder.Op(name, phase, inputs, {output}, OpType::kOther, layer);
  };
  op("a", Phase::kForward, {"x"}, "a", "h.0/a");
  op("b", Phase::kForward, {"a", "w"}, "b", "h.0/b");
  op("c", Phase::kForward, {"b"}, "c", "h.1/c");
  op("d", Phase::kForward, {"c"}, "d", "h.1/d");
  op("loss", Phase::kForward, {"d"}, "l", "loss");
  op("loss.bwd", Phase::kBackward, {"d"}, "dd", "loss");
  op("d.bwd", Phase::kBackward, {"dd", "c"}, "dc", "h.1/d");
  op("c.bwd", Phase::kBackward, {"dc", "b"}, "db", "h.1/c");
  op("b.bwd", Phase::kBackward, {"db", "a", "w"}, "da", "h.0/b");
  Trace trace = builder.Build();
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes(), {{Bytes(4)}}};
  for (Op& each : trace.ops) each.recorded.emplace();
  trace.tensors[1].request = 0;  // w is this request; a copy of w is another
  trace.Validate();
  return trace;
}

// Returns the tensors that the plan lists, with "save", "offload" or the group that comes back.
std::map<std::string, std::string> TextOf(const Trace& trace, const SavedTensorsPlan& plan) {
  std::map<std::string, std::string> listed;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const SavedTensor& tensor = plan.tensors[i];
    if (!tensor.fate) continue;
    listed[trace.tensors[i].name] = *tensor.fate == SavedFate::kSave      ? "save"
                                    : *tensor.fate == SavedFate::kOffload ? "offload"
                                                                          : tensor.group;
  }
  return listed;
}

// Returns the most bytes that are live at one op, without the input and the weight.
int64_t PeakOf(const Trace& trace) {
  const Liveness liveness(trace);
  int64_t peak = 0;
  for (size_t op = 0; op < trace.ops.size(); ++op) {
    int64_t live = 0;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (trace.tensors[i].kind == TensorKind::kInput ||
          trace.tensors[i].kind == TensorKind::kParameter || !liveness.FirstUse(id)) {
        continue;
      }
      if (Index(*liveness.FirstUse(id)) <= op && op <= Index(*liveness.LastUse(id))) {
        live += trace.tensors[i].size.count();
      }
    }
    peak = std::max(peak, live);
  }
  return peak;
}

// b and d leave their blocks, so they are kept. a and c are made again, each in its block.
TEST(PyTorchPlansTest, CheckpointsKeepWhatLeavesABlock) {
  const Trace trace = TwoBlocks();
  EXPECT_THAT(
      TextOf(trace, CheckpointBlocks(trace, 2)),
      ElementsAre(Pair("a", "h.0"), Pair("b", "save"), Pair("c", "h.1"), Pair("d", "save")));
  EXPECT_THAT(TextOf(trace, CheckpointBlocks(trace, 1)),
              ElementsAre(Pair("a", "h.0"), Pair("b", "save"), Pair("d", "save")));
}

// Backward reads a and c, but autograd saved c only: the program itself keeps a.
TEST(PyTorchPlansTest, SavedTensorsSayWhatIsSaved) {
  Trace trace = TwoBlocks();
  const auto id = [&](const char* name) {
    const auto found = std::ranges::find(trace.tensors, name, &Tensor::name);
    return static_cast<TensorId>(found - trace.tensors.begin());
  };
  trace.saved = {{id("a"), 1, {}}, {id("c"), 3, {6}}, {id("w"), 4, {8}}};
  trace.Validate();
  EXPECT_THAT(TextOf(trace, CheckpointBlocks(trace, 2)),
              ElementsAre(Pair("b", "save"), Pair("c", "h.1"), Pair("d", "save")));
  const SavedTensorsPlan plan = SaveOnCpu(trace);
  EXPECT_THAT(TextOf(trace, plan), ElementsAre(Pair("c", "offload"), Pair("w", "offload")));
  ApplySavedTensors(trace, plan, testing::FixedCost()).Validate();
}

// Recorded, the most is live at d.bwd: a, b, c, dd and dc. With both blocks checkpointed, b, d
// and dd are live at the end of the loss, and then b, dd, dc and the new c: 40 bytes. With the
// first alone, c is kept, and a is not there: b, c, dd and dc. The block whose backward runs brings
// back all that it made.
TEST(PyTorchPlansTest, CheckpointsLowerThePeakByWhatTheyDrop) {
  const Trace trace = TwoBlocks();
  const testing::FixedCost cost;
  const auto peak = [&](const SavedTensorsPlan& plan) {
    return PeakOf(HeldAsRecorded(ApplySavedTensors(trace, plan, cost)));
  };
  EXPECT_EQ(PeakOf(trace), 50);
  EXPECT_EQ(peak(CheckpointBlocks(trace, 2)), 40);
  EXPECT_EQ(peak(CheckpointBlocks(trace, 1)), 40);
  EXPECT_EQ(peak(CheckpointBlocks(trace, 0)), 50);
}

// Forward of the block makes a and a mask, which only backward reads. When the mask comes back, no
// op uses the first one but the op that made it.
TEST(PyTorchPlansTest, AnOpDoesNotReadTheMaskThatItMakes) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10).Tensor("a", TensorKind::kActivation, 10);
  builder.Tensor("mask", TensorKind::kActivation, 10).Tensor("da", TensorKind::kGradient, 10);
  builder.Tensor("l", TensorKind::kActivation, 1).Tensor("dx", TensorKind::kGradient, 10);
  builder.Op("drop", Phase::kForward, {"x"}, {"a", "mask"}, OpType::kOther, "h.0/drop");
  builder.Op("loss", Phase::kForward, {"a"}, {"l"}, OpType::kOther, "loss");
  builder.Op("loss.bwd", Phase::kBackward, {"l"}, {"da"}, OpType::kOther, "loss");
  builder.Op("drop.bwd", Phase::kBackward, {"da", "mask"}, {"dx"}, OpType::kOther, "h.0/drop");
  Trace trace = builder.Build();
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) op.recorded.emplace();
  trace.tensors[Index(builder.Id("mask"))].held_until = OpId{3};
  for (const SavedTensorsPlan& plan : {CheckpointBlocks(trace, 1), SaveOnCpu(trace)}) {
    HeldAsRecorded(ApplySavedTensors(trace, plan, testing::FixedCost())).Validate();
  }
}

// x --mm--> m --relu--> r --mm--> p --add--> y in one block; only r is read by backward. The
// results of both products are kept until r is back, though nothing needs p again; y leaves the
// block.
TEST(PyTorchPlansTest, SelectiveCheckpointsKeepCostlyResults) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1);
  for (const char* name : {"m", "r", "p", "y", "l"}) {
    builder.Tensor(name, TensorKind::kActivation, 1);
  }
  builder.Tensor("dr", TensorKind::kGradient, 1);
  builder.Op("mm.1", Phase::kForward, {"x"}, {"m"}, OpType::kMatmul, "h.0/mm.1");
  builder.Op("relu", Phase::kForward, {"m"}, {"r"}, OpType::kOther, "h.0/relu");
  builder.Op("mm.2", Phase::kForward, {"r"}, {"p"}, OpType::kMatmul, "h.0/mm.2");
  builder.Op("add", Phase::kForward, {"p", "x"}, {"y"}, OpType::kOther, "h.0/add");
  builder.Op("loss", Phase::kForward, {"y"}, {"l"}, OpType::kOther, "loss");
  builder.Op("mm.bwd", Phase::kBackward, {"l", "r"}, {"dr"}, OpType::kMatmul, "h.0/mm.2");
  Trace trace = builder.Build();
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) op.recorded.emplace();
  const SavedTensorsPlan plan = CheckpointBlocks(trace, 1, Recomputed::kCheapOps);
  EXPECT_THAT(TextOf(trace, plan), ElementsAre(Pair("m", "save"), Pair("p", "save"),
                                               Pair("r", "h.0"), Pair("y", "save")));
  const Trace ran = ApplySavedTensors(trace, plan, testing::FixedCost());
  const auto held_by = [&](const char* name) {
    const auto held = ran.tensor(builder.Id(name)).held_until;
    return held ? ran.op(*held).name : "";
  };
  EXPECT_EQ(ran.ops[5].name, "relu.again");
  EXPECT_EQ(ran.ops[5].inputs[0], builder.Id("m"));
  EXPECT_EQ(held_by("m"), "relu.again");
  EXPECT_EQ(held_by("p"), "relu.again");
  EXPECT_EQ(held_by("y"), "");
}

TEST(PyTorchPlansTest, SaveOnCpuMovesAllThatBackwardReads) {
  const Trace trace = TwoBlocks();
  const SavedTensorsPlan plan = SaveOnCpu(trace);
  EXPECT_TRUE(plan.each_reader);
  EXPECT_THAT(TextOf(trace, plan),
              ElementsAre(Pair("a", "offload"), Pair("b", "offload"), Pair("c", "offload"),
                          Pair("d", "offload"), Pair("w", "offload")));
}

// A tensor that comes back is another request of the program.
TEST(PyTorchPlansTest, CopiesHaveNoRequest) {
  const Trace trace = TwoBlocks();
  const Trace applied = ApplySavedTensors(trace, SaveOnCpu(trace), testing::FixedCost());
  EXPECT_GT(applied.tensors.size(), trace.tensors.size());
  EXPECT_EQ(std::ranges::count(applied.tensors, std::optional(uint32_t{0}), &Tensor::request), 1);
}

// Tensors that backward writes, and parameters that forward changes, never come back.
TEST(PyTorchPlansTest, WhatCannotComeBackIsKept) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1)
      .Tensor("mean", TensorKind::kOptimizerState, 1)
      .Tensor("y", TensorKind::kActivation, 1)
      .Tensor("z", TensorKind::kActivation, 1);
  builder.Op("norm", Phase::kForward, {"x", "mean"}, {"y", "mean"}, OpType::kOther, "h.0/norm");
  builder.Op("mul", Phase::kForward, {"y"}, {"z"}, OpType::kOther, "h.0/mul");
  builder.Op("bwd", Phase::kBackward, {"y", "z", "mean"}, {"z"}, OpType::kOther, "h.0/mul");
  const Trace trace = builder.Build();
  EXPECT_THAT(TextOf(trace, CheckpointBlocks(trace, 1)), ElementsAre(Pair("y", "h.0")));
}

}  // namespace
}  // namespace spillway::testing
