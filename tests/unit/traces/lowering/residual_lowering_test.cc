// Tests of the lowering of residual networks: batch normalisation, sums, forks, and layers next to
// them that may work in place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool HasOp(const Trace& trace, const std::string& name) {
  return std::any_of(trace.ops.begin(), trace.ops.end(),
                     [&](const Op& op) { return op.name == name; });
}

Trace Lower(const Network& network, const char* preset = "torch", bool training = true) {
  return LowerNetwork(network, {2, preset, training});
}

Trace LowerWithForks(const Network& network, Forks forks) {
  Preset preset = FindPreset("torch");
  preset.forks = forks;
  return LowerNetwork(network, {.batch = 2}, preset);
}

TEST(BatchNormLoweringTest, OperandsFollowTheContract) {
  const Trace trace = Lower(testing::Residual());
  const Op& forward = FindOp(trace, "a.conv1.bn.fwd");
  EXPECT_THAT(Names(trace, forward.inputs),
              ElementsAre("a.conv1.y", "a.conv1.bn.weight", "a.conv1.bn.bias"));
  EXPECT_THAT(Names(trace, forward.outputs),
              ElementsAre("a.conv1.bn.y", "a.conv1.bn.mean", "a.conv1.bn.inv_std"));
  EXPECT_EQ(forward.slots[0].signature, "batchnorm.fwd in=4x16x16 training=1");
  EXPECT_TRUE(forward.recomputable);
  const Op& backward = FindOp(trace, "a.conv1.bn.bwd");
  EXPECT_THAT(
      Names(trace, backward.inputs),
      ElementsAre("a.conv1.y", "a.conv1.bn.weight", "a.conv1.bn.dy", "a.conv1.bn.mean",
                  "a.conv1.bn.inv_std", "a.conv1.bn.running_mean", "a.conv1.bn.running_var"));
  EXPECT_THAT(Names(trace, backward.outputs),
              ElementsAre("a.conv1.dy", "a.conv1.bn.dweight", "a.conv1.bn.dbias",
                          "a.conv1.bn.running_mean", "a.conv1.bn.running_var"));
  EXPECT_EQ(backward.slots[0].signature, "batchnorm.bwd in=4x16x16 dx=1 fused=0");
}

TEST(BatchNormLoweringTest, AFusedUpdateReadsTheBias) {
  const Trace trace = Lower(testing::Residual(), "vdnn");
  const Op& backward = FindOp(trace, "a.conv1.bn.bwd");
  EXPECT_EQ(trace.tensor(backward.inputs.back()).name, "a.conv1.bn.bias");
  EXPECT_THAT(Names(trace, backward.outputs),
              ElementsAre("a.conv1.dy", "a.conv1.bn.weight", "a.conv1.bn.bias",
                          "a.conv1.bn.running_mean", "a.conv1.bn.running_var"));
}

// Forward has no state, so it may run again. Backward updates the running statistics once.
TEST(BatchNormLoweringTest, NoForwardOpOfTrainingTouchesTheRunningStatistics) {
  const Trace trace = Lower(testing::Residual());
  int written = 0;
  for (const Op& op : trace.ops) {
    for (const TensorId id : op.outputs) {
      if (!trace.tensor(id).name.ends_with("running_var")) continue;
      EXPECT_EQ(op.phase, Phase::kBackward);
      EXPECT_EQ(trace.tensor(id).kind, TensorKind::kOptimizerState);
      ++written;
    }
  }
  EXPECT_EQ(written, 6);
}

TEST(BatchNormLoweringTest, InferenceUsesTheRunningStatistics) {
  const Trace trace = Lower(testing::Residual(), "torch", false);
  const Op& forward = FindOp(trace, "stem.bn.fwd");
  EXPECT_THAT(Names(trace, forward.inputs),
              ElementsAre("stem.y", "stem.bn.weight", "stem.bn.bias", "stem.bn.running_mean",
                          "stem.bn.running_var"));
  EXPECT_THAT(Names(trace, forward.outputs), ElementsAre("stem.bn.y"));
  EXPECT_EQ(forward.slots[0].signature, "batchnorm.fwd in=8x16x16 training=0");
}

TEST(ResidualLoweringTest, ReluAfterBatchNormWorksInPlace) {
  const Trace trace = Lower(testing::Residual());
  const Op& relu = FindOp(trace, "a.conv1.relu.fwd");
  EXPECT_TRUE(SameStorage(trace, relu.inputs[0], relu.outputs[0]));
}

// data -> conv -> bn -> {relu, other}: bn.y has a second reader, a convolution.
TEST(ResidualLoweringTest, AReluWhoseInputHasOtherReadersIsNotInPlace) {
  Network net("n", {3, 8, 8});
  const LayerNode norm = net.ConvNorm("stem", net.image(), ConvSpec::Square(4, 3, 1, 1));
  const LayerNode relu = net.Relu("relu", norm);
  const LayerNode other = net.Conv("other", norm, ConvSpec::Square(4, 1));
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("add", relu, other), 10));
  const Trace trace = Lower(net);
  const Op& forward = FindOp(trace, "relu.fwd");
  EXPECT_FALSE(SameStorage(trace, forward.inputs[0], forward.outputs[0]));
  const Op& backward = FindOp(trace, "relu.bwd");
  EXPECT_FALSE(SameStorage(trace, backward.inputs[1], backward.outputs[0]));
  // The later operand, the convolution, runs backward first and creates the gradient of bn.y. The
  // relu adds to it.
  EXPECT_EQ(FindOp(trace, "other.bwd").IntAttribute("accumulate"), 0);
  EXPECT_EQ(backward.IntAttribute("accumulate"), 1);
}

// The backward ops of a max pool and an LRN read data that a relu or a sum in place would destroy.
TEST(ResidualLoweringTest, WhatBackwardReadsIsNotOverwritten) {
  Network net("n", {3, 8, 8});
  const LayerNode conv = net.ConvRelu("conv", net.image(), ConvSpec::Square(4, 3, 1, 1));
  const LayerNode pool = net.Relu("pool.relu", net.MaxPool("pool", conv, {2, 2}));
  const LayerNode lrn = net.Lrn("lrn", pool);
  const LayerNode sum =
      net.Add("add", lrn, net.Relu("relu", net.Conv("side", pool, ConvSpec::Square(4, 1))));
  net.SoftmaxLoss("softmax", net.Linear("fc", sum, 10));
  const Trace training = Lower(net);
  const Trace inference = Lower(net, "torch", false);
  for (const char* name : {"pool.relu.fwd", "add.fwd"}) {
    const Op& kept = FindOp(training, name);
    for (const TensorId input : kept.inputs) {
      EXPECT_FALSE(SameStorage(training, input, kept.outputs[0])) << name;
    }
    const Op& free = FindOp(inference, name);
    EXPECT_TRUE(SameStorage(inference, free.inputs[0], free.outputs[0])) << name;
  }
}

// The sum overwrites the branch, not the shortcut from which the branch began. Both operands and
// the sum share one gradient. The branch's first convolution adds to it after the other ops have
// read it.
TEST(ResidualLoweringTest, AResidualSumCostsNoMemory) {
  const Trace trace = Lower(testing::Residual());
  const Op& forward = FindOp(trace, "a.add.fwd");
  EXPECT_TRUE(SameStorage(trace, forward.outputs[0], forward.inputs[0]));
  EXPECT_FALSE(SameStorage(trace, forward.outputs[0], forward.inputs[1]));
  for (const char* name : {"a.add.bwd", "b.add.bwd"}) {
    const Op& backward = FindOp(trace, name);
    ASSERT_EQ(backward.outputs.size(), 2u);
    EXPECT_TRUE(SameStorage(trace, backward.outputs[0], backward.inputs[0])) << name;
    EXPECT_TRUE(SameStorage(trace, backward.outputs[1], backward.inputs[0])) << name;
    EXPECT_THAT(backward.slots[0].signature, HasSubstr("copies=0"));
    EXPECT_EQ(backward.traffic(), Bytes(0));
  }
  const Op& conv = FindOp(trace, "a.conv1.bwd");
  EXPECT_EQ(conv.IntAttribute("accumulate"), 1);
  EXPECT_TRUE(SameStorage(trace, conv.outputs[0], FindOp(trace, "a.add.bwd").outputs[0]));
}

// The operands have separate gradients if the backward op of one operand would write the gradient
// that the other has yet to read.
TEST(ResidualLoweringTest, GradientsAreSharedOnlyIfNobodyWritesThemTooEarly) {
  const auto shared = [](auto build) {
    Network net("n", {3, 8, 8});
    const LayerNode x = net.Conv("stem", net.image(), ConvSpec::Square(4, 3, 1, 1));
    net.SoftmaxLoss("softmax", net.Linear("fc", build(net, x), 10));
    const Trace trace = Lower(net);
    const Op& add = FindOp(trace, "add.bwd");
    return SameStorage(trace, add.outputs[0], add.outputs[1]);
  };
  const ConvSpec conv = ConvSpec::Square(4, 1);
  EXPECT_TRUE(shared([&](Network& net, LayerNode x) {
    const LayerNode a = net.Conv("a", x, conv);
    return net.Add("add", a, net.Conv("b", x, conv));
  }));
  // The later operand is a relu, which works in place on its gradient.
  EXPECT_FALSE(shared([&](Network& net, LayerNode x) {
    const LayerNode a = net.Conv("a", x, conv);
    return net.Add("add", a, net.ConvRelu("b", x, conv));
  }));
  // The relu works in place, but it runs last.
  EXPECT_TRUE(shared([&](Network& net, LayerNode x) {
    const LayerNode a = net.ConvRelu("a", x, conv);
    return net.Add("add", a, net.Conv("b", x, conv));
  }));
  // A sum passes its gradient on to ops that may write it.
  EXPECT_FALSE(shared([&](Network& net, LayerNode x) {
    const LayerNode a = net.Conv("a", x, conv);
    const LayerNode b = net.ConvRelu("b", x, conv);
    return net.Add("add", a, net.Add("inner", b, net.Conv("c", b, conv)));
  }));
  // The convolution beside the shortcut adds to the gradient while it reads it.
  EXPECT_FALSE(
      shared([&](Network& net, LayerNode x) { return net.Add("add", net.Conv("a", x, conv), x); }));
  // With one layer in between, the convolution adds after the sum's gradient has been read.
  EXPECT_TRUE(shared([&](Network& net, LayerNode x) {
    return net.Add("add", net.Conv("b", net.Conv("a", x, conv), conv), x);
  }));
  // Another consumer of the later operand adds to its gradient first.
  EXPECT_FALSE(shared([&](Network& net, LayerNode x) {
    const LayerNode a = net.Conv("a", x, conv);
    const LayerNode b = net.Conv("b", x, conv);
    const LayerNode sum = net.Add("add", a, b);
    return net.Concat("concat", std::array{sum, net.Conv("c", b, conv)});
  }));
}

TEST(ForkLoweringTest, ConsumersShareWhereThePresetSaysSo) {
  for (const char* preset : {"torch", "vdnn", "vdnnpp"}) {
    for (const Op& op : Lower(testing::ForkJoin(), preset).ops) {
      EXPECT_NE(op.type, OpType::kFork) << op.name;
    }
  }
}

TEST(ForkLoweringTest, EachConsumerGetsACopyAndAGradient) {
  const Trace trace = LowerWithForks(testing::Residual(), Forks::kCopy);
  const Op& forward = FindOp(trace, "stem.relu.fork.fwd");
  EXPECT_THAT(Names(trace, forward.outputs), ElementsAre("stem.relu.fork.y1", "stem.relu.fork.y2"));
  EXPECT_EQ(forward.slots[0].signature, "fork.fwd elements=2048 parts=2 copies=2");
  EXPECT_EQ(FindOp(trace, "a.conv1.fwd").inputs[0], forward.outputs[0]);
  EXPECT_EQ(FindOp(trace, "a.add.fwd").inputs[1], forward.outputs[1]);
  const Op& backward = FindOp(trace, "stem.relu.fork.bwd");
  EXPECT_THAT(Names(trace, backward.inputs),
              ElementsAre("stem.relu.fork.dy1", "stem.relu.fork.dy2"));
  EXPECT_THAT(Names(trace, backward.outputs), ElementsAre("stem.relu.dy"));
  EXPECT_EQ(trace.layer(forward.layer).name, "stem.relu.fork");
  for (const Op& op : trace.ops) EXPECT_EQ(op.FindAttribute("accumulate").value_or(0), 0);
}

TEST(ForkLoweringTest, TheFirstConsumerMayShare) {
  const Trace trace = LowerWithForks(testing::Residual(), Forks::kShareOne);
  const Op& forward = FindOp(trace, "stem.relu.fork.fwd");
  EXPECT_TRUE(SameStorage(trace, forward.inputs[0], forward.outputs[0]));
  EXPECT_FALSE(SameStorage(trace, forward.inputs[0], forward.outputs[1]));
  EXPECT_THAT(forward.slots[0].signature, HasSubstr("copies=1"));
  const Op& backward = FindOp(trace, "stem.relu.fork.bwd");
  EXPECT_TRUE(SameStorage(trace, backward.inputs[0], backward.outputs[0]));
}

TEST(DropoutLoweringTest, InferenceHasNone) {
  const Trace training = Lower(testing::Normalized());
  const Trace inference = Lower(testing::Normalized(), "torch", false);
  EXPECT_THAT(Names(training, FindOp(training, "drop.bwd").inputs), ElementsAre("drop.dy"));
  EXPECT_TRUE(HasOp(training, "drop.fwd"));
  EXPECT_FALSE(HasOp(inference, "drop.fwd"));
  EXPECT_EQ(FindOp(inference, "fc2.fwd").inputs[0], FindOp(inference, "fc1.relu.fwd").outputs[0]);
}

TEST(LrnLoweringTest, BackwardReadsInputAndOutput) {
  const Trace trace = Lower(testing::Normalized());
  const Op& backward = FindOp(trace, "lrn1.bwd");
  EXPECT_THAT(Names(trace, backward.inputs), ElementsAre("conv1.relu.y", "lrn1.y", "lrn1.dy"));
  EXPECT_EQ(backward.slots[0].signature, "lrn.bwd in=8x16x16 size=5");
}

}  // namespace
}  // namespace spillway::testing
