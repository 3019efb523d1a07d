#include "traces/lowering/order.h"

#include <numeric>

#include "traces/base/error.h"

namespace spillway {
namespace {

std::vector<LayerNode> DepthFirst(const LayerGraph& graph) {
  std::vector<size_t> arrived(boost::num_vertices(graph));  // number of inputs that have run
  std::vector<LayerNode> order;
  order.reserve(arrived.size());
  std::vector<LayerNode> arrivals{0};  // layers still to visit, the next one at the end
  while (!arrivals.empty()) {
    const LayerNode node = arrivals.back();
    arrivals.pop_back();
    if (++arrived[node] < boost::in_degree(node, graph)) continue;  // a join waits
    order.push_back(node);
    const auto [first, end] = boost::out_edges(node, graph);
    if (first == end) continue;
    arrivals.push_back(boost::target(*first, graph));
    for (auto edge = end; --edge != first;) arrivals.push_back(boost::target(*edge, graph));
  }
  SPILLWAY_CHECK(order.size() == arrived.size());  // every layer is reached from the image
  return order;
}

}  // namespace

std::vector<LayerNode> ExecutionOrder(const Network& network, Order order) {
  if (order == Order::kDepthFirst) return DepthFirst(network.graph());
  std::vector<LayerNode> nodes(boost::num_vertices(network.graph()));
  std::iota(nodes.begin(), nodes.end(), LayerNode{0});
  return nodes;
}

}  // namespace spillway
