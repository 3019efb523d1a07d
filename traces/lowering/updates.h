// The ops that follow backward: clipping of the gradients, and the updates of the parameters.

#ifndef SPILLWAY_TRACES_LOWERING_UPDATES_H_
#define SPILLWAY_TRACES_LOWERING_UPDATES_H_

#include <optional>
#include <string>
#include <vector>

#include "traces/lowering/lowered_trace.h"

namespace spillway::traces {

// The parameters of a layer, each with its complete gradient. A tied weight belongs to one layer
// only.
struct TrainedLayer {
  struct Parameter {
    Role role{};
    TensorId tensor{};
    TensorId gradient{};
  };

  std::string name;
  LayerId layer{};
  std::vector<Parameter> parameters;
};

// Adds one update of the type `rule` for each layer that has parameters. If `clip_norm` is given,
// ops that add up the squares of all gradients precede the first update, and an op that scales the
// gradient of a parameter precedes the update of its layer. Creates the state of the optimizer.
void AddUpdates(const std::vector<TrainedLayer>& layers, OpType rule,
                std::optional<double> clip_norm, LoweredTrace& trace);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_UPDATES_H_
