#include "traces/lowering/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Names(const Network& network, Order order) {
  std::vector<std::string> names;
  for (const LayerNode node : ExecutionOrder(network, order)) {
    names.push_back(network.layer(node).name);
  }
  return names;
}

// Two fans, one within the other, as in Fig. 6 of the paper:
//
//   data - a - b ----------- e - join
//            \ c - d - f ------/
//                    \ g - h /
//
// Among the consumers of a, b is built first and runs last. Among the consumers of d, f does.
Network Nested() {
  Network net("nested", {2, 4, 4});
  const LayerNode a = net.Relu("a", net.image());
  const LayerNode b = net.Relu("b", a);
  const LayerNode d = net.Relu("d", net.Relu("c", a));
  const LayerNode f = net.Relu("f", d);
  const LayerNode h = net.Relu("h", net.Relu("g", d));
  const LayerNode e = net.Relu("e", b);
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Concat("join", std::array{e, f, h}), 2));
  return net;
}

TEST(OrderTest, ConstructionIsTheDefault) {
  EXPECT_THAT(Names(Nested(), Order::kConstruction),
              ElementsAre("data", "a", "b", "c", "d", "f", "g", "h", "e", "join", "fc", "softmax"));
  EXPECT_EQ(FindPreset("torch").order, Order::kConstruction);
}

TEST(OrderTest, DepthFirstFinishesABranchAndWaitsAtJoins) {
  EXPECT_THAT(Names(Nested(), Order::kDepthFirst),
              ElementsAre("data", "a", "c", "d", "g", "h", "f", "b", "e", "join", "fc", "softmax"));
}

// "Numbers 1..k-1 before child 0" holds for any k.
TEST(OrderTest, TheFirstConsumerIsLast) {
  Network net("fan", {2, 4, 4});
  const LayerNode a = net.Relu("a", net.image());
  std::vector<LayerNode> branches;
  for (const char* name : {"b0", "b1", "b2", "b3"}) branches.push_back(net.Relu(name, a));
  net.Concat("join", branches);
  EXPECT_THAT(Names(net, Order::kDepthFirst),
              ElementsAre("data", "a", "b1", "b2", "b3", "b0", "join"));
}

// A layer may read one output twice.
TEST(OrderTest, CountsEveryEdge) {
  Network net("twice", {2, 4, 4});
  const LayerNode a = net.Relu("a", net.image());
  net.Relu("b", net.Add("sum", a, a));
  EXPECT_THAT(Names(net, Order::kDepthFirst), ElementsAre("data", "a", "sum", "b"));
}

TEST(OrderTest, InputsComeFirstInEveryNetwork) {
  std::vector<std::string> names{"resnet(6,32,788,6)", "densenet(2,3,k=4)"};
  for (const ZooEntry& entry : Zoo()) names.push_back(entry.name);
  for (const std::string& name : names) {
    const Network network = BuildNetwork(name);
    for (const Order order : {Order::kConstruction, Order::kDepthFirst}) {
      std::vector<size_t> position(network.size());
      const std::vector<LayerNode> nodes = ExecutionOrder(network, order);
      ASSERT_EQ(nodes.size(), position.size());
      for (size_t i = 0; i < nodes.size(); ++i) position[nodes[i]] = i;
      for (size_t i = 0; i < nodes.size(); ++i) {
        ASSERT_EQ(position[nodes[i]], i) << name;  // a permutation
        for (const LayerNode input : network.Inputs(nodes[i])) {
          ASSERT_LT(position[input], i) << name;
        }
      }
    }
  }
}

// Only the order differs: the layers have the same operands in the same places.
TEST(OrderTest, ReorderingKeepsTheNetwork) {
  const Network network = BuildNetwork("inception-v4");
  const Network reordered = network.InOrder(ExecutionOrder(network, Order::kDepthFirst));
  const auto describe = [](const Network& net) {
    std::vector<std::string> lines;
    for (LayerNode node = 0; node < net.size(); ++node) {
      std::string line = net.layer(node).name;
      for (const LayerNode input : net.Inputs(node)) line += " " + net.layer(input).name;
      lines.push_back(line);
    }
    return lines;
  };
  EXPECT_NE(describe(reordered), describe(network));
  EXPECT_THAT(describe(reordered), ::testing::UnorderedElementsAreArray(describe(network)));
  EXPECT_EQ(reordered.name(), "inception-v4");
}

// Forward runs in the order of the preset, backward in its reverse.
TEST(OrderTest, IsAChoiceOfThePreset) {
  Preset preset = FindPreset("torch");
  preset.order = Order::kDepthFirst;
  const Trace trace = LowerNetwork(Nested(), {2}, preset);
  std::vector<std::string> forward, backward;
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::kForward) forward.push_back(trace.layer(op.layer).name);
    if (op.phase == Phase::kBackward) backward.push_back(trace.layer(op.layer).name);
  }
  EXPECT_THAT(forward,
              ElementsAre("a", "c", "d", "g", "h", "f", "b", "e", "join", "fc", "softmax"));
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(backward, forward);
}

}  // namespace
}  // namespace spillway::testing
