// The facts about a trace that SuperNeurons uses: which tensors may leave, which are dropped and
// recomputed, in which segments, and which data each backward step needs. These facts do not depend
// on how much memory is free.
//
// Checkpoints (section 3.4) are CONV, FC, FORK, JOIN, CONCAT, DATA and SOFTMAX layers, and every
// other layer that the op table does not call cheap. The layers between two checkpoints form a
// segment. Their outputs are dropped after their last use in forward.

#ifndef SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_
#define SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

// The outputs that may be offloaded.
enum class SuperNeuronsOffload : uint8_t {
  kNone,
  kConv,         // outputs of convolutions (section 3.3.1)
  kCheckpoints,  // also outputs of joins, concatenations and forks, and the image
};

enum class SuperNeuronsRecompute : uint8_t {
  kNone,
  kSpeed,      // a recomputed storage stays until its last use
  kMemory,     // the storages that a recomputing step has read are dropped again
  kCostAware,  // as kMemory in the segments that need more than max(l_i), else as kSpeed
};

class SuperNeuronsSteps {
 public:
  // To be called once, before anything else.
  void Plan(const Trace& trace, const Liveness& liveness, SuperNeuronsOffload offload,
            SuperNeuronsRecompute recompute);

  // Returns true if the storage is a layer's data: an activation, a gradient or the image, but not
  // a parameter, a statistic, a loss or a label.
  bool IsData(TensorId storage) const { return roles_[Index(storage)].data; }
  // Returns true for other results of a forward step: the statistics of a batch and the loss. They
  // are small and no data, but they lie between data until backward.
  bool IsStatistic(TensorId storage) const { return roles_[Index(storage)].statistic; }
  // Returns true if the storage is in the set that is offloaded.
  bool Leaves(TensorId storage) const { return roles_[Index(storage)].leaves; }
  // Returns true if the storage is dropped after its last use in forward.
  bool IsDropped(TensorId storage) const { return roles_[Index(storage)].dropped; }

  // Return the data that backward uses again and that this op is the last in forward to write, or
  // to use.
  std::span<const TensorId> WrittenLast(OpId op) const { return written_last_[Index(op)]; }
  std::span<const TensorId> UsedLast(OpId op) const { return used_last_[Index(op)]; }

  // Returns true if the op drops the storages that it has read when it runs again.
  bool DropsWhatItReads(OpId op) const { return drops_[Index(op)]; }

  // Returns the data that the op reads. For data that has been dropped, it also returns the data
  // from which it is recomputed.
  std::span<const TensorId> Needs(OpId op) const { return needs_[Index(op)]; }
  // Returns the first op after `op` whose `Needs` has the storage, or nullopt if there is none.
  std::optional<OpId> NextNeed(TensorId storage, OpId op) const;

  // For the backward op of a convolution or a linear layer, returns the backward op of the nearest
  // convolution below it, or the last backward op if there is none. Returns nullopt for other ops.
  std::optional<OpId> PreviousConv(OpId op) const { return previous_conv_[Index(op)]; }

 private:
  struct Role {
    bool data = false;
    bool statistic = false;
    bool leaves = false;
    bool dropped = false;
  };

  void FindRoles(const Trace& trace, const Liveness& liveness, SuperNeuronsOffload offload,
                 bool drop);
  void FindLastForward(const Trace& trace, const Liveness& liveness);
  void FindSegments(const Trace& trace, const Liveness& liveness, SuperNeuronsRecompute recompute);
  void FindNeeds(const Trace& trace, const Liveness& liveness);
  void FindPreviousConvs(const Trace& trace);

  std::vector<Role> roles_;                                      // by tensor; only roots have one
  std::vector<std::vector<TensorId>> written_last_, used_last_;  // by op
  std::vector<std::vector<TensorId>> needs_;                     // by op
  std::vector<std::vector<OpId>> needed_by_;                     // by tensor, ascending
  std::vector<std::optional<OpId>> previous_conv_;               // by op
  std::vector<bool> drops_;                                      // by op
};

// Returns, by id, which tensors the paper counts: outputs of layers and gradients of activations,
// but no image, labels, loss, statistics or parameters.
std::vector<bool> SuperNeuronsCounted(const Trace& trace);

// Returns the paper's max(l_i): the largest sum of the counted tensors that a backward op uses. If
// the op works in place, both tensors of the storage are counted (released code; section 3.4).
Bytes SuperNeuronsLayerPeak(const Trace& trace);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_
