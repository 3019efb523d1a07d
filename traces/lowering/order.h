// The order in which the layers of a network run, a named choice of the lowering.

#ifndef SPILLWAY_TRACES_LOWERING_ORDER_H_
#define SPILLWAY_TRACES_LOWERING_ORDER_H_

#include <cstdint>
#include <vector>

#include "traces/lowering/graph.h"

namespace spillway::traces {

enum class Order : uint8_t {
  kConstruction,  // the order in which the network was built
  // Depth first: a layer runs when the last of its inputs has run. Then each of its consumers runs
  // with everything that follows from it before the next consumer. SuperNeurons (Wang et al., PPoPP
  // 2018), Algorithm 1. The paper does not say which consumer is first. Its released code starts
  // with the second in order of construction, continues with the third and so on, and runs the
  // first last.
  kDepthFirst,
};

// Returns all layers, inputs before consumers, starting with the image. Takes time linear in the
// size of the graph, without recursion.
std::vector<LayerNode> ExecutionOrder(const Network& network, Order order);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_ORDER_H_
