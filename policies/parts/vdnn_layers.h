// The layers of a trace as vDNN and vDNN++ see them: whose inputs X leave the device, after which
// step, and at which step they come back.
//
// X leaves with the forward step of its last consumer. In backward the search of vDNN's Fig. 10
// says, step by step, of which layer to prefetch X. This decides nothing about waiting or
// releasing, which is where the two systems differ.

#ifndef SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_
#define SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway {

enum class OffloadSet : uint8_t {
  kNone,
  kConv,           // inputs of convolutions (vDNN, section III-C)
  kAlternateConv,  // of every other convolution, beginning with the first (vDNN++, section II-B)
  kAll,  // of all feature extraction layers: activations work in place, classifiers are left alone
};

// Which of a prefetched X and the tensors of the step that it overlaps is placed first.
enum class PlacementOrder : uint8_t { kPrefetchFirst, kDerivativeFirst };

// Declares the parameter "order"; both papers leave it open, vDNN++ studies it.
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
    bool prefetched = false;  // likewise
  };

  // To be called once, before anything else.
  void Plan(const Trace& trace, const Liveness& liveness, OffloadSet set);

  void BeginIteration();

  // The layer whose inputs leave with this op; nullptr for a backward step.
  Layer* OffloadedWith(OpId op);

  // Fig. 10: the nearest layer below that of `op` that is offloaded and not yet prefetched, looking
  // no further than the next convolution. nullptr if there is none, for a forward step, and for a
  // ReLU or a loss, which overlap nothing.
  Layer* FindPrefetchLayer(OpId op);

  // Prefetches X of a layer, as far as there is room. True if a copy was issued; the layer counts
  // as prefetched if nothing of it was left behind.
  static bool Prefetch(PolicyContext& context, Layer& layer);

  // Whether the storage leaves the device.
  bool IsOffloaded(TensorId storage) const { return leaves_[Index(storage)]; }

 private:
  // What every hook asks of an op.
  struct Step {
    Phase phase = Phase::kForward;
    uint32_t layer = 0;
  };

  std::vector<Step> steps_;  // by op
  std::vector<Layer> layers_;
  std::vector<bool> leaves_;  // by tensor
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_VDNN_LAYERS_H_
