#include "sim/runtime/operand_placer.h"

#include <algorithm>

#include "sim/runtime/pins.h"

namespace spillway::sim {

void OperandPlacer::Place(OpId op) {
  overwrites_ = false;
  if (TryPlace(op, /*must=*/false)) return;
  Bytes size;
  for (const TensorId id : liveness_.Storages(op)) {
    const Storage& storage = memory_.At(id);
    if (!storage.persistent || storage.lives_outside) size += storage.size;
  }
  {
    const ScopedUnpins movable(memory_, ops_.Needed(op));
    memory_.MakeRoomFor(size);
  }
  TryPlace(op, /*must=*/true);
}

void OperandPlacer::PlaceAgain(OpId op) {
  for (const Touched& input : ops_.Inputs(op)) bring_(input.storage, /*must=*/true);
  for (const Touched& written : ops_.Written(op)) MakeWritable(written.storage, /*must=*/true);
}

bool OperandPlacer::TryPlace(OpId op, bool must) {
  placed_.clear();
  if (BringAll(ops_.Needed(op), must) && TryPlaceOutputs(op, must) &&
      BringAll(ops_.Kept(op), must)) {
    return true;
  }
  for (const TensorId id : placed_) {
    memory_.GiveDeviceBlock(id);
    memory_.At(id).residency = Residency::kNone;
  }
  return false;
}

bool OperandPlacer::TryPlaceOutputs(OpId op, bool must) {
  const ScopedUnpins movable(memory_, ops_.Kept(op));
  for (const Touched& written : ops_.Written(op)) {
    const Residency before = memory_.At(written.storage).residency;
    if (OnDevice(before)) continue;
    if (!MakeWritable(written.storage, must)) return false;
    placed_.push_back(written.storage);
    overwrites_ |= before != Residency::kNone;
  }
  return true;
}

bool OperandPlacer::BringAll(std::span<const TensorId> storages, bool must) {
  if (FirstMissing(storages) == storages.end()) return true;
  const ScopedUnpins movable(memory_, storages);
  return BringMissing(storages, must);
}

std::span<const TensorId>::iterator OperandPlacer::FirstMissing(
    std::span<const TensorId> storages) const {
  return std::find_if(storages.begin(), storages.end(),
                      [&](TensorId id) { return !OnDevice(memory_.At(id).residency); });
}

bool OperandPlacer::BringMissing(std::span<const TensorId> storages, bool must) {
  const auto missing = FirstMissing(storages);
  if (missing == storages.end()) return true;
  const ScopedPins stays(memory_, std::span(missing, 1));
  return bring_(*missing, must) && BringMissing(storages, must);
}

bool OperandPlacer::MakeWritable(TensorId id, bool must) {
  Storage& storage = memory_.At(id);
  if (OnDevice(storage.residency)) return true;
  memory_.DropOutsideCopy(id);
  if (must) {
    memory_.TakeDeviceBlock(id);
    return true;
  }
  if (!memory_.TryPlaceOnDevice(id, /*ask=*/true)) return false;
  storage.residency = Residency::kDevice;
  return true;
}

}  // namespace spillway::sim
