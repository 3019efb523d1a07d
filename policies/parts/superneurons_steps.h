// A trace as SuperNeurons sees it: which tensors may leave, which are dropped and rebuilt, in which
// segments, and what each backward step needs of them. Static facts; decides nothing about when
// memory is short.
//
// Checkpoints are CONV, FC, FORK, JOIN, CONCAT, DATA and SOFTMAX layers, and everything else that
// is not cheap (section 3.4): what the op table does not call so. The layers between two
// checkpoints form a segment; their outputs are dropped after their last use in forward.

#ifndef SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_
#define SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Which outputs may be sent to the host.
enum class SuperNeuronsOffload : uint8_t {
  kNone,
  kConv,         // of convolutions (section 3.3.1)
  kCheckpoints,  // also of joins, concatenations and forks, and the image
};

enum class SuperNeuronsRecompute : uint8_t {
  kNone,
  kSpeed,      // what is rebuilt stays until its last use
  kMemory,     // what a rebuilding step has read is dropped again
  kCostAware,  // as kMemory in the segments that need more than max(l_i), else as kSpeed
};

class SuperNeuronsSteps {
 public:
  // To be called once, before anything else.
  void Plan(const Trace& trace, const Liveness& liveness, SuperNeuronsOffload offload,
            SuperNeuronsRecompute recompute);

  // Whether the storage is a layer's data: an activation, a gradient or the image, and not a
  // parameter, a statistic, a loss or a label.
  bool IsData(TensorId storage) const { return roles_[Index(storage)].data; }
  // Whether it is another result of a forward step: the statistics of a batch, the loss. They are
  // small and no data, but lie between data until backward.
  bool IsStatistic(TensorId storage) const { return roles_[Index(storage)].statistic; }
  // Whether the storage is of the kind that is sent to the host.
  bool Leaves(TensorId storage) const { return roles_[Index(storage)].leaves; }
  // Whether the storage is dropped after its last use in forward.
  bool IsDropped(TensorId storage) const { return roles_[Index(storage)].dropped; }

  // What the op is the last in forward to write, or to use, and backward uses again.
  std::span<const TensorId> WrittenLast(OpId op) const { return written_last_[Index(op)]; }
  std::span<const TensorId> UsedLast(OpId op) const { return used_last_[Index(op)]; }

  // Whether a step that runs again drops what it has read.
  bool DropsWhatItReads(OpId op) const { return drops_[Index(op)]; }

  // The data that the op reads, and for what of it is dropped the data that rebuilding begins with.
  std::span<const TensorId> Needs(OpId op) const { return needs_[Index(op)]; }
  // The first op after `op` that needs the storage in this sense; nullopt if none does.
  std::optional<OpId> NextNeed(TensorId storage, OpId op) const;

  // For backward of a convolution or a linear layer: backward of the nearest convolution below it,
  // or the last backward op. nullopt for other ops.
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

  std::vector<Role> roles_;                                      // by tensor; of roots
  std::vector<std::vector<TensorId>> written_last_, used_last_;  // by op
  std::vector<std::vector<TensorId>> needs_;                     // by op
  std::vector<std::vector<OpId>> needed_by_;                     // by tensor, ascending
  std::vector<std::optional<OpId>> previous_conv_;               // by op
  std::vector<bool> drops_;                                      // by op
};

// The tensors that the paper counts, by id: outputs of layers and gradients of activations; no
// image, labels, loss, statistics or parameters.
std::vector<bool> SuperNeuronsCounted(const Trace& trace);

// max(l_i) as the paper has it: the largest sum of the counted tensors that one backward op names,
// a tensor counted twice where one is made in place of the other (released code; section 3.4).
Bytes SuperNeuronsLayerPeak(const Trace& trace);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_SUPERNEURONS_STEPS_H_
