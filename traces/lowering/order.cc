#include "traces/lowering/order.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>
#include <iterator>
#include <numeric>

namespace spillway::traces {
namespace {

// Boost.Graph's order is the reverse of that in which its search leaves the layers, so that what
// the search visits last runs first.
std::vector<LayerNode> DepthFirst(const Network& network) {
  boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS> graph(network.size());
  for (LayerNode node = 0; node < network.size(); ++node) {
    const std::vector<LayerNode>& consumers = network.Consumers(node);
    if (consumers.empty()) continue;
    boost::add_edge(node, consumers.front(), graph);
    for (size_t i = consumers.size(); --i > 0;) boost::add_edge(node, consumers[i], graph);
  }
  std::vector<LayerNode> reversed;
  reversed.reserve(network.size());
  boost::topological_sort(graph, std::back_inserter(reversed));
  return {reversed.rbegin(), reversed.rend()};
}

}  // namespace

std::vector<LayerNode> ExecutionOrder(const Network& network, Order order) {
  if (order == Order::kDepthFirst) return DepthFirst(network);
  std::vector<LayerNode> nodes(network.size());
  std::iota(nodes.begin(), nodes.end(), LayerNode{0});
  return nodes;
}

}  // namespace spillway::traces
