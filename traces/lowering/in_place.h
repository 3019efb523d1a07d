// Decides which layers work in place: a layer that the preset allows, if no other op needs the
// overwritten data.
//
// The decision depends on the network, the preset and training only. Lowering, which makes the
// tensors, is the only user.

#ifndef SPILLWAY_TRACES_LOWERING_IN_PLACE_H_
#define SPILLWAY_TRACES_LOWERING_IN_PLACE_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "traces/lowering/graph.h"
#include "traces/lowering/preset.h"

namespace spillway::traces {

class InPlaceRules {
 public:
  // `network` and `preset` outlive this object.
  InPlaceRules(const Network& network, const Preset& preset, bool training)
      : network_(network), preset_(preset), training_(training) {}

  // Returns true iff a fork op is between the layer and its consumers.
  bool IsForked(LayerNode node) const;
  // Returns true iff the layer passes on its input unchanged, as dropout does in inference.
  bool IsPassedThrough(LayerNode node) const;

  // Returns the index of the input that the layer overwrites in forward, if any.
  std::optional<size_t> OverwrittenInput(LayerNode node) const;

  // Returns for each input whether its gradient shares the storage of the output's gradient.
  // `begun` tells which gradients of the inputs an earlier backward op has written.
  std::vector<bool> SharedGradients(LayerNode node, const std::vector<bool>& begun) const;

 private:
  OpType type(LayerNode node) const { return network_.layer(node).type; }
  size_t ConsumerCount(LayerNode node) const { return network_.Consumers(node).size(); }
  // True if a consumer of the node may overwrite its output: it is the only one, backward does not
  // read it, and it is no image.
  bool MayBeOverwritten(LayerNode node) const;
  // Returns true iff backward of the layer may overwrite the incoming gradient. Its result must be
  // the whole gradient of the layer's only input.
  bool WorksInPlaceBackward(LayerNode node) const;
  // Returns true iff the backward op that reads the gradient of this operand of a sum overwrites
  // it. If the operand is forked, that op belongs to the fork, which does not.
  bool OverwritesGradient(LayerNode node) const;
  // Returns true iff one storage can be the gradient of both operands of a sum.
  bool MayShareOneGradient(const std::vector<LayerNode>& operands) const;

  const Network& network_;
  const Preset& preset_;
  const bool training_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_IN_PLACE_H_
