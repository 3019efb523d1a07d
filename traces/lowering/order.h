// In which order the layers of a network run: a named choice of the lowering.

#ifndef SPILLWAY_TRACES_LOWERING_ORDER_H_
#define SPILLWAY_TRACES_LOWERING_ORDER_H_

#include <cstdint>
#include <vector>

#include "traces/lowering/graph.h"

namespace spillway {

enum class Order : uint8_t {
  kConstruction,  // as the network was built
  // Depth first: a layer runs when the last of its inputs has, and then each of its consumers and
  // all that follows from it before the next consumer. SuperNeurons (Wang et al., PPoPP 2018),
  // Algorithm 1. The paper leaves open which consumer is first; as in its released code it is the
  // second in order of construction, then the third and so on, and the first comes last.
  kDepthFirst,
};

// All layers, inputs before consumers, the image first. Takes time linear in the size of the graph
// and no recursion.
std::vector<LayerNode> ExecutionOrder(const Network& network, Order order);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOWERING_ORDER_H_
