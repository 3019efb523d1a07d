// Which layers work in place: what a preset allows, where nothing else needs what is overwritten.
//
// A function of the network and the preset alone. Internal to lowering, which makes the tensors.

#ifndef SPILLWAY_TRACES_LOWERING_IN_PLACE_H_
#define SPILLWAY_TRACES_LOWERING_IN_PLACE_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "traces/lowering/graph.h"
#include "traces/lowering/preset.h"

namespace spillway {

class InPlaceRules {
 public:
  // Network and preset outlive the rules.
  InPlaceRules(const Network& network, const Preset& preset, bool training)
      : network_(network), preset_(preset), training_(training) {}

  // Whether a fork op stands between the layer and its consumers.
  bool IsForked(LayerNode node) const;
  // In inference a dropout hands on what it gets.
  bool IsPassedThrough(LayerNode node) const;

  // The input that the layer overwrites in forward, if any.
  std::optional<size_t> OverwrittenInput(LayerNode node) const;

  // For each input, whether its gradient is, or is made in place of, the gradient of the output.
  // `begun` tells which gradients of the inputs an earlier backward op has written.
  std::vector<bool> SharedGradients(LayerNode node, const std::vector<bool>& begun) const;

 private:
  OpType type(LayerNode node) const { return network_.layer(node).type; }
  size_t ConsumerCount(LayerNode node) const { return network_.Consumers(node).size(); }
  // True if a consumer of the node may overwrite its output: it is the only one, backward does not
  // read it, and it is no image.
  bool MayBeOverwritten(LayerNode node) const;
  // Whether backward of the layer may overwrite the gradient that comes in: what it makes of it is
  // the whole gradient of its only input.
  bool WorksInPlaceBackward(LayerNode node) const;
  // Whether backward of what follows the sum, the layer or its fork, writes its incoming gradient.
  bool OverwritesGradient(LayerNode node) const;
  // Whether one storage can be the gradient of both operands of a sum.
  bool MayShareOneGradient(const std::vector<LayerNode>& operands) const;

  const Network& network_;
  const Preset& preset_;
  const bool training_;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOWERING_IN_PLACE_H_
