#include "sim/runtime/operand_placer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/runtime/pins.h"

namespace spillway {
namespace {

bool Names(std::span<const Touched> operands, TensorId id) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Touched& operand) { return operand.storage == id; });
}

}  // namespace

OperandPlacer::OperandPlacer(const Trace& trace, const Liveness& liveness, const OpTable& ops,
                             MemoryTable& memory, Bring bring)
    : liveness_(liveness), ops_(ops), memory_(memory), bring_(std::move(bring)) {
  size_t most = 0;
  for (const Op& op : trace.ops) most += 2 * (op.inputs.size() + op.outputs.size());
  listed_.reserve(most);  // rows are pointed to
  // Adds those of the op's storages that `choose` says to the list, and gives them.
  const auto list = [&](OpId op, const auto& choose) {
    const size_t begin = listed_.size();
    std::ranges::copy_if(liveness.Storages(op), std::back_inserter(listed_), choose);
    return std::span<const TensorId>(listed_).subspan(begin);
  };
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const auto op = static_cast<OpId>(i);
    // What an op writes a part of has to keep what earlier ops have written.
    const auto is_added_to = [&](TensorId id) {
      return !liveness.Writers(id).empty() && liveness.Writers(id).front() < op &&
             std::ranges::any_of(ops.Outputs(op), [&](const Touched& output) {
               return output.storage == id && output.size < trace.tensor(id).size;
             });
    };
    inputs_.push_back(
        {list(op, [&](TensorId id) { return Names(ops.Inputs(op), id) || is_added_to(id); }),
         list(op, [&](TensorId id) {
           return Names(ops.Inputs(op), id) && !Names(ops.Written(op), id);
         })});
  }
}

void OperandPlacer::Place(OpId op) {
  overwrites_ = false;
  if (TryPlace(op, /*must=*/false)) return;
  Bytes size;
  for (const TensorId id : liveness_.Storages(op)) {
    const Storage& storage = memory_.At(id);
    if (!storage.persistent || storage.lives_outside) size += storage.size;
  }
  {
    const ScopedUnpins movable(memory_, inputs_[Index(op)].all);
    memory_.MakeRoomFor(size);
  }
  TryPlace(op, /*must=*/true);
}

void OperandPlacer::PlaceAgain(OpId op) {
  for (const Touched& input : ops_.Inputs(op)) bring_(input.storage, /*must=*/true);
  for (const Touched& written : ops_.Written(op)) MakeWritable(written.storage, /*must=*/true);
}

bool OperandPlacer::TryPlace(OpId op, bool must) {
  const Inputs& inputs = inputs_[Index(op)];
  placed_.clear();
  if (BringAll(inputs.all, must) && TryPlaceOutputs(op, must) && BringAll(inputs.kept, must)) {
    return true;
  }
  for (const TensorId id : placed_) {
    memory_.GiveDeviceBlock(id);
    memory_.At(id).residency = Residency::kNone;
  }
  return false;
}

bool OperandPlacer::TryPlaceOutputs(OpId op, bool must) {
  const ScopedUnpins movable(memory_, inputs_[Index(op)].kept);
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
  const ScopedUnpins movable(memory_, storages);
  return BringMissing(storages, must);
}

bool OperandPlacer::BringMissing(std::span<const TensorId> storages, bool must) {
  const auto missing = std::find_if(storages.begin(), storages.end(), [&](TensorId id) {
    return !OnDevice(memory_.At(id).residency);
  });
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

}  // namespace spillway
