#include "sim/runtime/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {

MemoryTable::MemoryTable(const RuntimeParts& parts, const Liveness& liveness,
                         const CommandLog& commands, Report& report, Callbacks callbacks)
    : parts_(parts),
      commands_(commands),
      callbacks_(std::move(callbacks)),
      placements_(report.placements),
      storages_(parts.trace->tensors.size()),
      by_speed_(PoolsBySpeed(*parts.device)),
      mappings_(report.mappings) {
  // The arena may have served another run and mapped memory. The backend does not know these calls
  // yet.
  PassDriverCalls();
  const std::vector<bool> wholes = parts.trace->Wholes();
  for (size_t i = 0; i < storages_.size(); ++i) {
    const Tensor& tensor = parts.trace->tensors[i];
    const bool is_root = Index(liveness.Root(static_cast<TensorId>(i))) == i;
    storages_[i].size = tensor.size;
    storages_[i].persistent =
        is_root && !wholes[i] &&
        (tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState);
  }
}

MemoryTable::~MemoryTable() {
  for (const Reservation& reservation : reservations_) parts_.arena->Free(reservation.block);
  for (const Storage& storage : storages_) {
    if (storage.holds_device) parts_.arena->Free(storage.device);
    if (storage.holds_outside) PoolAt(storage.pool).Free(storage.outside);
  }
  if (workspace_) parts_.arena->Free(*workspace_);
}

void MemoryTable::BeginIteration() {
  placements_.Begin();
  device_hazards_.Clear();
  for (HazardMap& hazards : outside_hazards_) hazards.Clear();
  for (const Reservation& reservation : reservations_) {
    LogPlacement(PlacementKind::kAllocate, kNoTensor, reservation.requested, reservation.block);
  }
  for (size_t i = 0; i < storages_.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    Storage& storage = storages_[i];
    storage.issued_uses = 0;
    storage.device_hazards = storage.outside_hazards = Hazards();
    if (OnDevice(storage.residency)) {
      LogPlacement(PlacementKind::kAllocate, id, storage.size, storage.device, PoolId::kDevice,
                   storage.hint);
    }
    if (storage.holds_outside) {
      LogPlacement(PlacementKind::kAllocate, id, storage.size, storage.outside, storage.pool);
    }
  }
}

// --- Device blocks ------------------------------------------------------------------------------

void MemoryTable::TakeDeviceBlock(TensorId id) {
  PlaceOnDevice(id);
  At(id).residency = Residency::kDevice;
}

void MemoryTable::PlaceOnDevice(TensorId id) {
  const Storage& storage = At(id);
  if (storage.reservation != Storage::kNotReserved) {
    Reservation& reservation = reservations_[storage.reservation];
    if (reservation.occupant != kNoTensor) {
      throw PolicyError(
          fmt::format("op '{}': '{}' and '{}' share a reserved block but are live at the same time",
                      OpName(), NameOf(id), NameOf(reservation.occupant)));
    }
    Enter(id, reservation);
    return;
  }
  const Hint hint = callbacks_.hint(id);
  UseLane(parts_.trace->tensor(id).lane);
  Own(id, AllocateOrFail(storage.size, hint, [&] { return NameOf(id); }), hint);
}

bool MemoryTable::TryPlaceOnDevice(TensorId id, bool ask) {
  const Storage& storage = At(id);
  if (storage.reservation != Storage::kNotReserved) {
    Reservation& reservation = reservations_[storage.reservation];
    if (reservation.occupant != kNoTensor) return false;
    Enter(id, reservation);
    return true;
  }
  const Hint hint = callbacks_.hint(id);
  UseLane(parts_.trace->tensor(id).lane);
  for (;;) {
    const auto block = parts_.arena->Allocate(storage.size, hint);
    PassDriverCalls();
    if (block) {
      Own(id, *block, hint);
      return true;
    }
    if (!ask || !MakeRoom(storage.size)) return false;
  }
}

void MemoryTable::Own(TensorId id, const Block& block, Hint hint) {
  Storage& storage = At(id);
  storage.device = block;
  storage.hint = hint;
  storage.holds_device = true;
  storage.device_hazards = Hazards(TakeHazards(block));
  NoteAllocated(id, storage.size, block, hint);
}

void MemoryTable::Enter(TensorId id, Reservation& reservation) {
  Storage& storage = At(id);
  reservation.occupant = id;
  storage.device = {reservation.block.offset, storage.size};
  storage.device_hazards = Hazards(TakeHazards(storage.device));
  LogPlacement(PlacementKind::kEnter, id, storage.size, storage.device);
}

void MemoryTable::GiveDeviceBlock(TensorId id) {
  Storage& storage = At(id);
  ++blocks_given_;
  LeaveHazards(storage.device, storage.device_hazards.ForWrite());
  if (storage.reservation != Storage::kNotReserved) {
    reservations_[storage.reservation].occupant = kNoTensor;
    LeaveReserved(id, storage.size, storage.device);
    return;
  }
  storage.holds_device = false;
  GiveBlock(id, storage.size, storage.device);
}

void MemoryTable::PassDriverCalls() {
  const auto calls = parts_.arena->driver_calls();
  for (; driver_calls_ < calls.size(); ++driver_calls_) {
    const DriverCall& call = calls[driver_calls_];
    parts_.backend->OnDriverCall(call);
    if (!call.physical) continue;
    pages_.Note(call);
    mappings_.push_back(call);
  }
}

WaitSet MemoryTable::TakeHazards(const Block& block) {
  if (pages_.empty()) return device_hazards_.Take(block);
  WaitSet inherited;
  pages_.ForEach(block, [&](const Block& memory) { inherited.Add(device_hazards_.Take(memory)); });
  return inherited;
}

void MemoryTable::LeaveHazards(const Block& block, const WaitSet& touched) {
  if (pages_.empty()) return device_hazards_.Leave(block, touched);
  pages_.ForEach(block, [&](const Block& memory) { device_hazards_.Leave(memory, touched); });
}

void MemoryTable::NoteAllocated(TensorId id, Bytes requested, const Block& block, Hint hint) {
  parts_.backend->OnAllocate(block);
  LogPlacement(PlacementKind::kAllocate, id, requested, block, PoolId::kDevice, hint);
}

void MemoryTable::GiveBlock(TensorId id, Bytes requested, const Block& block) {
  parts_.arena->Free(block);
  parts_.backend->OnFree(block);
  PassDriverCalls();
  LogPlacement(PlacementKind::kFree, id, requested, block);
}

void MemoryTable::LeaveReserved(TensorId id, Bytes requested, const Block& block) {
  parts_.backend->OnAbandon(block, PoolId::kDevice);
  LogPlacement(PlacementKind::kLeave, id, requested, block);
}

// --- Blocks outside -----------------------------------------------------------------------------

bool MemoryTable::TakeOutsideBlock(TensorId id, std::optional<PoolId> named) {
  Storage& storage = At(id);
  for (const PoolId pool : by_speed_) {
    if (named && pool != *named) continue;
    const auto block = PoolAt(pool).Allocate(storage.size);
    if (!block) continue;
    storage.pool = pool;
    storage.outside = *block;
    storage.holds_outside = true;
    storage.outside_hazards = Hazards(outside_hazards_[NumberOf(pool)].Take(*block));
    parts_.backend->OnOutsideBlock(id, *block, pool);
    LogPlacement(PlacementKind::kAllocate, id, storage.size, *block, pool);
    return true;
  }
  return false;
}

void MemoryTable::DropOutsideCopy(TensorId id) {
  Storage& storage = At(id);
  if (!Outside(storage.residency)) return;
  if (storage.lives_outside && storage.persistent) {
    storage.residency =
        storage.residency == Residency::kBoth ? Residency::kDevice : Residency::kNone;
    return;  // the block outside is kept
  }
  storage.holds_outside = false;
  PoolAt(storage.pool).Free(storage.outside);
  parts_.backend->OnAbandon(storage.outside, storage.pool);
  outside_hazards_[NumberOf(storage.pool)].Leave(storage.outside,
                                                 storage.outside_hazards.ForWrite());
  LogPlacement(PlacementKind::kFree, id, storage.size, storage.outside, storage.pool);
  storage.residency = storage.residency == Residency::kBoth ? Residency::kDevice : Residency::kNone;
}

void MemoryTable::Drop(TensorId id) {
  if (OnDevice(At(id).residency)) GiveDeviceBlock(id);
  DropOutsideCopy(id);
  At(id).residency = Residency::kNone;
}

// --- Workspaces and reservations ----------------------------------------------------------------

const MemoryTable::Reservation* MemoryTable::ReservedWorkspace(OpId op, Bytes size) const {
  const auto fits = [&](uint32_t index) { return reservations_[index].requested >= size; };
  const auto own = workspace_reservations_.find(op);
  if (own != workspace_reservations_.end() && fits(own->second)) return &reservations_[own->second];
  if (workspace_reservation_ && fits(*workspace_reservation_)) {
    return &reservations_[*workspace_reservation_];
  }
  return nullptr;
}

Workspace MemoryTable::TakeWorkspace(OpId op, Bytes size) {
  Workspace workspace;
  if (size == Bytes(0)) return workspace;
  workspace.requested = size;
  if (const Reservation* reservation = ReservedWorkspace(op, size)) {
    workspace.reserved = true;
    workspace.block = {reservation->block.offset, size};
    LogPlacement(PlacementKind::kEnter, kNoTensor, size, workspace.block);
  } else {
    UseLane(parts_.trace->op(op).lane);
    workspace.block = AllocateOrFail(size, Hint::kLow, [] { return std::string("the workspace"); });
    workspace_ = workspace.block;
    NoteAllocated(kNoTensor, size, workspace.block, Hint::kLow);
  }
  workspace.inherited = TakeHazards(workspace.block);
  return workspace;
}

void MemoryTable::GiveWorkspace(const Workspace& workspace, Event issued) {
  const Bytes size = workspace.requested;
  if (size == Bytes(0)) return;
  WaitSet touched = workspace.inherited;
  touched.Add(issued);
  LeaveHazards(workspace.block, touched);
  if (workspace.reserved) {
    LeaveReserved(kNoTensor, size, workspace.block);
  } else {
    workspace_.reset();
    GiveBlock(kNoTensor, size, workspace.block);
  }
}

void MemoryTable::Reserve(std::span<const TensorId> storages, Bytes size) {
  const uint32_t index =
      AddReservation(size, fmt::format("the block reserved for {}", NameOf(storages.front())));
  for (const TensorId id : storages) At(id).reservation = index;
}

bool MemoryTable::ReserveWorkspace(Bytes size) {
  if (workspace_reservation_) return false;
  workspace_reservation_ = AddReservation(size, "the reserved workspace");
  return true;
}

bool MemoryTable::ReserveWorkspaceFor(OpId op, Bytes size) {
  if (workspace_reservations_.contains(op)) return false;
  const std::string& name = parts_.trace->op(op).name;
  workspace_reservations_[op] = AddReservation(size, fmt::format("the workspace of {}", name));
  return true;
}

uint32_t MemoryTable::AddReservation(Bytes size, std::string what) {
  UseLane(0);
  const Block block = AllocateOrFail(size, Hint::kLow, [&] { return what; });
  reservations_.push_back({block, size, kNoTensor, std::move(what)});
  parts_.backend->OnAllocate(block);
  return static_cast<uint32_t>(reservations_.size() - 1);
}

// --- Failures and the log -----------------------------------------------------------------------

template <typename What>
Block MemoryTable::AllocateOrFail(Bytes size, Hint hint, What what) {
  for (;;) {
    const auto block = parts_.arena->Allocate(size, hint);
    PassDriverCalls();
    if (block) return *block;
    if (!MakeRoom(size)) throw DoesNotFit{Describe(size, what())};
  }
}

void MemoryTable::UseLane(uint8_t lane) {
  if (std::exchange(lane_, lane) != lane) parts_.arena->UseStream(lane);
}

void MemoryTable::MakeRoomFor(Bytes size) {
  while (parts_.arena->Stats().largest_free < size && MakeRoom(size)) continue;
}

bool MemoryTable::MakeRoom(Bytes size) {
  const uint64_t given = blocks_given_;
  if (!callbacks_.make_room(size)) return false;
  if (blocks_given_ == given) {
    throw PolicyError(
        fmt::format("OnAllocFailure returned true at op '{}' but has not released or evicted "
                    "anything ({} bytes wanted)",
                    OpName(), size.count()));
  }
  return true;
}

std::string MemoryTable::OpName() const {
  return started_ ? parts_.trace->op(op_).name : OutOfMemory::kBeforeOps;
}

OutOfMemory MemoryTable::Describe(Bytes wanted, std::string what) const {
  OutOfMemory reason;
  reason.op = op_;
  reason.op_name = OpName();
  reason.what = std::move(what);
  reason.wanted = wanted;
  reason.capacity = parts_.device->memory;
  reason.stats = parts_.arena->Stats();
  for (const Reservation& reservation : reservations_) {
    reason.holders.push_back({reservation.what, reservation.block.size});
  }
  for (size_t i = 0; i < storages_.size(); ++i) {
    const Storage& storage = storages_[i];
    if (!OnDevice(storage.residency) || storage.reservation != Storage::kNotReserved) continue;
    reason.holders.push_back({NameOf(static_cast<TensorId>(i)), storage.device.size});
  }
  std::stable_sort(reason.holders.begin(), reason.holders.end(),
                   [](const auto& a, const auto& b) { return a.size > b.size; });
  return reason;
}

void MemoryTable::FailOutside(TensorId id, PoolId pool) const {
  OutOfMemory reason;
  reason.op = op_;
  reason.op_name = OpName();
  reason.pool = pool;
  reason.what = NameOf(id);
  reason.wanted = At(id).size;
  reason.capacity = SizeOf(*parts_.device, pool);
  reason.stats = PoolAt(pool).Stats();
  throw DoesNotFit{std::move(reason)};
}

void MemoryTable::LogPlacement(PlacementKind kind, TensorId id, Bytes requested, const Block& block,
                               PoolId pool, Hint hint) {
  const Allocator& allocator = pool == PoolId::kDevice ? *parts_.arena : PoolAt(pool);
  placements_.Append({kind, pool, hint, op_, id, static_cast<uint32_t>(commands_.issued()),
                      requested, block, allocator.Reserved()});
}

}  // namespace spillway::sim
