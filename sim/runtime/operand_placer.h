// Brings the operands of an op onto the device: inputs are fetched or recomputed, outputs and
// scratch tensors get blocks.
//
// An input that is already on the device may make room for other operands and is brought back
// later. This is possible until its turn comes, and again while the outputs are placed if the op
// does not write the input. If that fails because free memory is fragmented, the policy may remove
// all inputs, and all operands are placed again from the start. The runtime owns the placer.

#ifndef SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_
#define SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "sim/runtime/memory_table.h"
#include "sim/runtime/op_facts.h"
#include "traces/liveness.h"

namespace spillway::sim {

class OperandPlacer {
 public:
  // Fetches or recomputes a storage if it is not on the device. If there is no block for it, throws
  // `DoesNotFit` if `must` is true, and returns false otherwise.
  using Bring = std::function<bool(TensorId storage, bool must)>;

  // The arguments outlive the placer.
  OperandPlacer(const Liveness& liveness, const OpTable& ops, MemoryTable& memory, Bring bring)
      : liveness_(liveness), ops_(ops), memory_(memory), bring_(std::move(bring)) {}

  // Places the operands of an op of the trace. Both functions throw `DoesNotFit`. REQUIRES: the
  // caller has pinned the op's storages.
  void Place(OpId op);
  // Places the operands of an op that is run again, one after the other. No operand makes room for
  // another.
  void PlaceAgain(OpId op);

  // Returns true if an output of the op being placed has lost its previous contents. Then no input
  // of the op can be recomputed from these contents.
  bool overwrites() const { return overwrites_; }

 private:
  // Returns false if no block was free and `must` is false. In that case, outputs that had got a
  // block have given it back.
  bool TryPlace(OpId op, bool must);
  bool TryPlaceOutputs(OpId op, bool must);
  // Brings storages that are pinned once. Each step brings the first storage that is missing at
  // that moment, because an earlier step may have removed others. A storage that was brought stays.
  bool BringAll(std::span<const TensorId> storages, bool must);
  bool BringMissing(std::span<const TensorId> storages, bool must);
  std::span<const TensorId>::iterator FirstMissing(std::span<const TensorId> storages) const;
  // Gives a storage a block for an op that writes it.
  bool MakeWritable(TensorId id, bool must);

  const Liveness& liveness_;
  const OpTable& ops_;
  MemoryTable& memory_;
  const Bring bring_;
  bool overwrites_ = false;
  std::vector<TensorId> placed_;  // by one attempt; kept between ops to save allocations
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_
