// Gets what an op needs onto the device: its inputs fetched or rebuilt, its outputs and scratch
// allocated.
//
// What is where it belongs can still make room for the rest, and is brought back: an input until it
// is its turn, and once more while the outputs are placed, unless the op writes it, too. Where that
// fails, for blocks lie apart, everything goes that can, and what the op needs is placed anew.
// Owned by the runtime.

#ifndef SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_
#define SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "sim/runtime/memory_table.h"
#include "sim/runtime/op_facts.h"
#include "traces/liveness.h"

namespace spillway {

class OperandPlacer {
 public:
  // Fetches or rebuilds a storage if it is not on the device. False if no block could be had and
  // none must be; throws `DoesNotFit` if one must.
  using Bring = std::function<bool(TensorId storage, bool must)>;

  // The arguments outlive the placer.
  OperandPlacer(const Liveness& liveness, const OpTable& ops, MemoryTable& memory, Bring bring)
      : liveness_(liveness), ops_(ops), memory_(memory), bring_(std::move(bring)) {}

  // Both throw `DoesNotFit`. REQUIRES: the caller has pinned the op's storages.
  void Place(OpId op);
  // For an op that is run again: one operand after the other, of which none makes room.
  void PlaceAgain(OpId op);

  // Whether an output of the op being placed has lost contents that it had elsewhere: no input of
  // the op can be rebuilt from them any more.
  bool overwrites() const { return overwrites_; }

 private:
  // False if a block could not be had that need not be; then outputs that got one have given it
  // back.
  bool TryPlace(OpId op, bool must);
  bool TryPlaceOutputs(OpId op, bool must);
  // Brings storages that are pinned once: the first that is missing, then the first that is missing
  // now, and so on. Those that are there stay from their turn on.
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
  std::vector<TensorId> placed_;  // of one attempt; kept between ops to save allocations
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_OPERAND_PLACER_H_
