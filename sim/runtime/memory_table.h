// Who holds which bytes: the storages of a run with their blocks on the device and in the pools
// outside, and the placement log.
//
// It moves no data and issues no commands; it takes and gives back blocks, keeps the hazards that
// pass from owner to owner, and asks for room where none is free. Owned by the runtime.

#ifndef SPILLWAY_SIM_RUNTIME_MEMORY_TABLE_H_
#define SPILLWAY_SIM_RUNTIME_MEMORY_TABLE_H_

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/core/page_table.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "sim/runtime/command_log.h"
#include "sim/runtime/hazard_map.h"
#include "sim/runtime/parts.h"
#include "sim/runtime/repeated_log.h"
#include "traces/liveness.h"

namespace spillway {

inline bool OnDevice(Residency residency) {
  return residency == Residency::kDevice || residency == Residency::kBoth;
}

inline bool Outside(Residency residency) {
  return residency == Residency::kOutside || residency == Residency::kBoth;
}

// What a run knows of one storage. `device` and `outside` are meaningful as `residency` says.
struct Storage {
  static constexpr uint32_t kNotReserved = 0xffffffff;

  Bytes size;
  Residency residency = Residency::kNone;
  bool persistent = false;     // lives across iterations
  bool lives_outside = false;  // as `Policy::LivesOutside`; if persistent, `outside` stays its own
  uint32_t pins = 0;           // ops that need it where it is
  uint32_t issued_uses = 0;    // uses by ops of the trace issued in this iteration
  uint32_t reservation = kNotReserved;
  bool holds_device = false;   // `device` is a block of the arena, not a part of a reserved one
  bool holds_outside = false;  // `outside` is a block of `pool`
  Block device;
  Hint hint = Hint::kLow;  // that `device` was asked for with
  PoolId pool = PoolId::kHost;
  Block outside;
  Hazards device_hazards;
  Hazards outside_hazards;
};

// The workspace of one op; all zero if it needs none.
struct Workspace {
  Block block;
  Bytes requested;
  WaitSet inherited;      // what its first writer waits for
  bool reserved = false;  // in a block that stays
};

// Unwinds a run whose workload does not fit.
struct DoesNotFit {
  OutOfMemory reason;
};

class MemoryTable {
 public:
  // Answers for the policy.
  struct Callbacks {
    std::function<Hint(TensorId)> hint;
    std::function<bool(Bytes)> make_room;  // OnAllocFailure
  };

  // The arguments outlive the table.
  MemoryTable(const RuntimeParts& parts, const Liveness& liveness, const CommandLog& commands,
              Report& report, Callbacks callbacks);
  // Gives back to arena and pools whatever is still held. The backend is not told.
  ~MemoryTable();
  MemoryTable(const MemoryTable&) = delete;
  MemoryTable& operator=(const MemoryTable&) = delete;

  Storage& At(TensorId id) { return storages_[Index(id)]; }
  const Storage& At(TensorId id) const { return storages_[Index(id)]; }

  // The op of the trace that log entries and failures name from now on.
  void SetOp(OpId op) {
    op_ = op;
    started_ = true;
  }

  // Everything issued has completed; a new placement log begins with the blocks that are held.
  void BeginIteration();
  // True if the placement log equals that of the last iteration.
  bool EndIteration() { return placements_.End(); }

  // A device block for a storage whose contents are about to be written, or have arrived. All
  // methods that take device blocks throw `DoesNotFit` if none can be had.
  void TakeDeviceBlock(TensorId id);
  // The same without a change of residency: a copy will fill it.
  void PlaceOnDevice(TensorId id);
  // The same, but false if no block is free, also after the policy has made room if it is asked to.
  bool TryPlaceOnDevice(TensorId id, bool ask = false);
  // Has the policy make room until so many bytes are free in one piece, or it cannot.
  void MakeRoomFor(Bytes size);
  void GiveDeviceBlock(TensorId id);

  // A block in the pool named, or else in the fastest that has room; false if there is none.
  bool TakeOutsideBlock(TensorId id, std::optional<PoolId> pool = std::nullopt);
  // Forgets the copy outside, if there is one: it is stale, or no longer needed.
  void DropOutsideCopy(TensorId id);
  // Ends a storage's life: everything that it holds is given back.
  void Drop(TensorId id);

  Workspace TakeWorkspace(OpId op, Bytes size);
  // Gives it back after the op that `issued` stands for.
  void GiveWorkspace(const Workspace& workspace, Event issued);

  // One block for the whole run that the storages share. REQUIRES: none of them has a block.
  void Reserve(std::span<const TensorId> storages, Bytes size);
  // False if there is a reserved workspace already.
  bool ReserveWorkspace(Bytes size);
  // Likewise for this op.
  bool ReserveWorkspaceFor(OpId op, Bytes size);

  // No block outside is free for it; `pool` is the one that is named.
  [[noreturn]] void FailOutside(TensorId id, PoolId pool) const;

 private:
  // A block that one or several storages, or workspaces, use in turn for the whole run.
  struct Reservation {
    Block block;
    Bytes requested;
    TensorId occupant = kNoTensor;
    std::string what;
  };

  Allocator& PoolAt(PoolId pool) const { return *parts_.pools[NumberOf(pool)]; }
  const std::string& NameOf(TensorId id) const { return parts_.trace->tensor(id).name; }
  // Tells the backend of the driver calls that the arena has made since the last time.
  void PassDriverCalls();
  // Hazards between owners, which follow the memory behind a block's addresses.
  WaitSet TakeHazards(const Block& block);
  void LeaveHazards(const Block& block, const WaitSet& touched);
  // Notes that the storage has a new block.
  void Own(TensorId id, const Block& block, Hint hint);
  void Enter(TensorId id, Reservation& reservation);
  void NoteAllocated(TensorId id, Bytes requested, const Block& block, Hint hint);
  void GiveBlock(TensorId id, Bytes requested, const Block& block);
  // Ends the use of a block that stays reserved.
  void LeaveReserved(TensorId id, Bytes requested, const Block& block);
  // The reservation in which a workspace of the op has room: its own before that of all.
  const Reservation* ReservedWorkspace(OpId op, Bytes size) const;
  uint32_t AddReservation(Bytes size, std::string what);
  // Allocates on the device; where no block is free the policy is asked to make room. `what` names
  // the request in a failure.
  template <typename What>
  Block AllocateOrFail(Bytes size, Hint hint, What what);
  // Has the policy make room once; false if it cannot.
  bool MakeRoom(Bytes size);
  OutOfMemory Describe(Bytes wanted, std::string what) const;
  std::string OpName() const;
  void LogPlacement(PlacementKind kind, TensorId id, Bytes requested, const Block& block,
                    PoolId pool = PoolId::kDevice, Hint hint = Hint::kLow);

  const RuntimeParts& parts_;
  const CommandLog& commands_;
  const Callbacks callbacks_;
  RepeatedLog<Placement> placements_;
  OpId op_{};
  bool started_ = false;

  std::vector<Storage> storages_;  // by tensor; only roots are used
  std::vector<Reservation> reservations_;
  std::optional<uint32_t> workspace_reservation_;
  std::map<OpId, uint32_t> workspace_reservations_;
  std::optional<Block> workspace_;  // a block of the arena, held by the op being prepared
  HazardMap device_hazards_;
  const std::vector<PoolId> by_speed_;
  std::array<HazardMap, kMaxPools> outside_hazards_;  // by number
  uint64_t blocks_given_ = 0;
  PageTable pages_;
  std::vector<DriverCall>& mappings_;
  size_t driver_calls_ = 0;  // of the arena, that the backend has been told of
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_MEMORY_TABLE_H_
