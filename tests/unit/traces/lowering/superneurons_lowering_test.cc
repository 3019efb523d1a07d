// Tests of the lowering that SuperNeurons counts: one output per layer, forks that copy, and
// backward steps that work in place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

Trace Lower(const Network& network, bool training = true) {
  return LowerNetwork(network, {2, "superneurons", training});
}

// Section 4.1.1: AlexNet has 23 outputs and 13 gradients. The gradients belong to the inputs of 5
// convolutions, 3 pools, 3 linear layers and 2 dropouts.
TEST(SuperNeuronsLoweringTest, AlexNetHasThirtySixTensors) {
  const Trace trace = Lower(BuildNetwork("alexnet-227"));
  const auto count = [&](TensorKind kind) {
    return std::count_if(trace.tensors.begin(), trace.tensors.end(), [&](const Tensor& tensor) {
      return tensor.kind == kind && !tensor.alias_of && tensor.name != "loss";
    });
  };
  EXPECT_EQ(count(TensorKind::kActivation), 23);
  EXPECT_EQ(count(TensorKind::kGradient), 13);
}

TEST(SuperNeuronsLoweringTest, NothingIsInPlaceInForward) {
  for (const auto network : {testing::Chain, testing::Residual, testing::Normalized}) {
    const Trace trace = Lower(network());
    for (const Op& op : trace.ops) {
      if (op.phase != Phase::kForward) continue;
      for (const TensorId output : op.outputs) EXPECT_EQ(trace.Root(output), output) << op.name;
    }
  }
}

TEST(SuperNeuronsLoweringTest, BackwardOfReluLrnAndLossIsInPlace) {
  const Trace trace = Lower(testing::Normalized());
  const Op& lrn = FindOp(trace, "lrn1.bwd");
  EXPECT_THAT(Names(trace, lrn.inputs), ElementsAre("conv1.relu.y", "lrn1.y", "lrn1.dy"));
  EXPECT_TRUE(SameStorage(trace, lrn.inputs[2], lrn.outputs[0]));
  // The library call names x, although it reads only y.
  const Op& relu = FindOp(trace, "conv1.relu.bwd");
  EXPECT_THAT(Names(trace, relu.inputs), ElementsAre("conv1.relu.y", "conv1.relu.dy", "conv1.y"));
  EXPECT_EQ(relu.IntAttribute("holds_x"), 1);
  EXPECT_TRUE(SameStorage(trace, relu.inputs[1], relu.outputs[0]));
  const Op& loss = FindOp(trace, "softmax.bwd");
  EXPECT_TRUE(SameStorage(trace, loss.inputs[0], loss.outputs[0]));
  EXPECT_EQ(trace.tensor(loss.inputs[0]).name, "softmax.y");
  const Op& dropout = FindOp(trace, "drop.bwd");
  EXPECT_FALSE(SameStorage(trace, dropout.inputs[0], dropout.outputs[0]));
}

TEST(SuperNeuronsLoweringTest, TheFirstConvolutionComputesTheGradientOfTheImage) {
  const Trace trace = Lower(testing::Chain());
  const Op& conv = FindOp(trace, "conv1.bwd");
  EXPECT_EQ(conv.IntAttribute("needs_dx"), 1);
  ASSERT_EQ(conv.slots.size(), 2u);
  EXPECT_EQ(conv.slots[0].name, "bwd_data");
  const Trace torch = LowerNetwork(testing::Chain(), {2, "torch", true});
  EXPECT_EQ(FindOp(torch, "conv1.bwd").slots.size(), 1u);
}

TEST(SuperNeuronsLoweringTest, ForksCopyAndSumsPassTheirGradientOn) {
  const Trace trace = Lower(testing::Residual());
  const Op& fork = FindOp(trace, "stem.relu.fork.fwd");
  EXPECT_EQ(fork.slots[0].signature, "fork.fwd elements=2048 parts=2 copies=2");
  const Op& sum = FindOp(trace, "a.add.bwd");
  ASSERT_EQ(sum.outputs.size(), 2u);
  for (const TensorId dx : sum.outputs) EXPECT_TRUE(SameStorage(trace, dx, sum.inputs[0]));
  const Op& pool = FindOp(trace, "pool.bwd");
  EXPECT_THAT(Names(trace, pool.inputs), ElementsAre("pool.dy", "b.relu.y", "pool.y"));
}

// The backward op of the relu would overwrite the gradient that the sum's other operand has yet to
// read.
TEST(SuperNeuronsLoweringTest, ASumSharesItsGradientOnlyIfNobodyOverwritesIt) {
  Network net("n", {3, 8, 8});
  const LayerNode x = net.Conv("x", net.image(), ConvSpec::Square(4, 1));
  const LayerNode relu = net.Relu("relu", net.Conv("a", x, ConvSpec::Square(4, 1)));
  const LayerNode sum = net.Add("add", relu, x);
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("double", sum, sum), 10));
  const Trace trace = Lower(net);
  const Op& add = FindOp(trace, "add.bwd");
  EXPECT_FALSE(SameStorage(trace, add.outputs[0], add.outputs[1]));
  const Op& twice = FindOp(trace, "double.bwd");
  EXPECT_TRUE(SameStorage(trace, twice.outputs[0], twice.outputs[1]));
  const Op& fork = FindOp(trace, "add.fork.bwd");
  EXPECT_TRUE(SameStorage(trace, fork.inputs[0], fork.inputs[1]));
  EXPECT_FALSE(SameStorage(trace, fork.inputs[0], fork.outputs[0]));
}

// After a fork each relu has its own copy and overwrites the incoming gradient.
TEST(SuperNeuronsLoweringTest, AReluBehindAForkWorksInPlaceBackward) {
  Network net("n", {3, 8, 8});
  const LayerNode x = net.Conv("x", net.image(), ConvSpec::Square(4, 1));
  const LayerNode a = net.Conv("a", net.Relu("relu", x), ConvSpec::Square(4, 1));
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("add", a, x), 10));
  const Trace trace = Lower(net);
  const Op& relu = FindOp(trace, "relu.bwd");
  EXPECT_TRUE(SameStorage(trace, relu.inputs.at(1), relu.outputs.at(0)));
}

// Both consumers of the image add to one gradient.
TEST(SuperNeuronsLoweringTest, AnImageWithTwoConsumersHasOneGradient) {
  Network net("n", {3, 8, 8});
  const LayerNode a = net.Conv("a", net.image(), ConvSpec::Square(4, 1));
  const LayerNode b = net.Conv("b", net.image(), ConvSpec::Square(4, 1));
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("add", a, b), 10));
  const Trace trace = Lower(net);
  // In depth-first order, the branch built first runs last in forward and first in backward.
  EXPECT_EQ(FindOp(trace, "a.bwd").IntAttribute("accumulate"), 0);
  EXPECT_EQ(FindOp(trace, "b.bwd").IntAttribute("accumulate"), 1);
  EXPECT_EQ(FindOp(trace, "a.bwd").outputs[0], FindOp(trace, "b.bwd").outputs[0]);
}

}  // namespace
}  // namespace spillway::testing
