// The layers of a trace for vDNN and vDNN++: the layers whose inputs X leave the device, the step
// after which they leave, and the step at which they come back.
//
// X leaves with the forward step of its last consumer. At each backward step, the search of vDNN's
// Fig. 10 finds the layer whose X to prefetch. When computation waits and when X is released is not
// decided here, because the two systems differ in that.

#ifndef SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_
#define SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway::policies {

enum class OffloadSet : uint8_t {
  kNone,
  kConv,           // inputs of convolutions (vDNN, section III-C)
  kAlternateConv,  // inputs of every other convolution, from the first on (vDNN++, section II-B)
  kAll,            // inputs of all feature extraction layers, but not of activations, which work in
                   // place, and classifiers
};

// Says whether a prefetched X or the tensors of the step that it overlaps are placed first.
enum class PlacementOrder : uint8_t { kPrefetchFirst, kDerivativeFirst };

// Declares the parameter "order". Both papers leave the order open, and vDNN++ studies it.
PlacementOrder ReadPlacementOrder(Params& params);
// Returns each value of that parameter, as `PolicyTraits::candidates`.
std::vector<Params::Values> PlacementOrders();

class VdnnLayers {
 public:
  struct Layer {
    std::vector<TensorId> inputs{};  // offloaded at the end of the layer's forward step
    bool is_conv = false;
    bool is_step = true;      // false: works in place and is a part of the layer before it
    bool offloaded = false;   // in this iteration
    bool prefetched = false;  // in this iteration
  };

  // To be called once, before anything else.
  void Plan(const Trace& trace, const Liveness& liveness, OffloadSet set);

  void BeginIteration();

  // Returns the layer whose inputs leave with this op, or nullptr for a backward step.
  Layer* OffloadedWith(OpId op);

  // Returns the layer of Fig. 10: the nearest layer below the op's that is offloaded and not yet
  // prefetched, but none further down than the next convolution. Returns nullptr if there is none,
  // for a forward step, and for a ReLU or a loss, which overlap nothing.
  Layer* FindPrefetchLayer(OpId op);

  // Prefetches X of a layer, as far as there is room. Returns true if a copy was issued. The layer
  // counts as prefetched if no input was left outside.
  static bool Prefetch(PolicyContext& context, Layer& layer);

  // Returns true if the storage leaves the device.
  bool IsOffloaded(TensorId storage) const { return leaves_[Index(storage)]; }

 private:
  // The facts about an op that every hook needs.
  struct Step {
    Phase phase = Phase::kForward;
    uint32_t layer = 0;
  };

  std::vector<Step> steps_;  // by op
  std::vector<Layer> layers_;
  std::vector<bool> leaves_;  // by tensor
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_
