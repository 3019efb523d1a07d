// The owner of every block: the storages of a run with their blocks on the device and in the pools
// outside, and the placement log.
//
// The table moves no data and issues no commands. It takes blocks and gives them back, passes
// hazards from owner to owner, and asks the policy for room if no block is free. The runtime owns
// it.

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

namespace spillway::sim {

inline bool OnDevice(Residency residency) {
  return residency == Residency::kDevice || residency == Residency::kBoth;
}

inline bool Outside(Residency residency) {
  return residency == Residency::kOutside || residency == Residency::kBoth;
}

// The state of one storage in a run. `residency` tells whether `device` and `outside` are valid.
struct Storage {
  static constexpr uint32_t kNotReserved = 0xffffffff;

  Bytes size;
  Residency residency = Residency::kNone;
  bool persistent = false;     // lives across iterations
  bool lives_outside = false;  // see `Policy::LivesOutside`; keeps `outside` if persistent
  uint32_t pins = 0;           // number of ops that need it where it is
  bool held = false;           // the recorded program refers to it (step_hooks.h)
  uint32_t issued_uses = 0;    // uses in this iteration by issued ops of the trace
  uint32_t reservation = kNotReserved;
  bool holds_device = false;   // `device` is a block of the arena, not a part of a reserved block
  bool holds_outside = false;  // `outside` is a block of `pool`
  Block device;
  Hint hint = Hint::kLow;  // with which `device` was requested
  PoolId pool = PoolId::kHost;
  Block outside;
  Hazards device_hazards;
  Hazards outside_hazards;
};

// The workspace of one op; all zero if the op needs none.
struct Workspace {
  Block block;
  Bytes requested;
  WaitSet inherited;      // the events that its first writer waits for
  bool reserved = false;  // lies in a block that stays reserved
};

// The exception that ends a run whose workload does not fit.
struct DoesNotFit {
  OutOfMemory reason;
};

class MemoryTable {
 public:
  // The calls of the policy that the table makes.
  struct Callbacks {
    std::function<Hint(TensorId)> hint;
    std::function<bool(Bytes)> make_room;  // OnAllocFailure
  };

  // The arguments outlive the table.
  MemoryTable(const RuntimeParts& parts, const Liveness& liveness, const CommandLog& commands,
              Report& report, Callbacks callbacks);
  // Gives every block that is still held back to the arena and the pools. Does not inform the
  // backend.
  ~MemoryTable();
  MemoryTable(const MemoryTable&) = delete;
  MemoryTable& operator=(const MemoryTable&) = delete;

  Storage& At(TensorId id) { return storages_[Index(id)]; }
  const Storage& At(TensorId id) const { return storages_[Index(id)]; }

  // Sets the op of the trace that log entries and failures name from now on.
  void SetOp(OpId op) {
    op_ = op;
    started_ = true;
  }

  // Begins a new placement log with the blocks that are held. REQUIRES: every issued command has
  // completed.
  void BeginIteration();
  // Returns true iff the placement log equals the last iteration's.
  bool EndIteration() { return placements_.End(); }

  // Takes a device block for a storage whose contents are about to be written or have arrived. All
  // functions that take device blocks throw `DoesNotFit` if there is none.
  void TakeDeviceBlock(TensorId id);
  // Takes a device block that a copy will fill. Does not change the residency.
  void PlaceOnDevice(TensorId id);
  // Like `PlaceOnDevice`, but returns false if no block is free. If `ask` is true, it returns false
  // only after the policy could not make room.
  bool TryPlaceOnDevice(TensorId id, bool ask = false);
  // Asks the policy to make room until `size` bytes are free in one piece or it cannot.
  void MakeRoomFor(Bytes size);
  void GiveDeviceBlock(TensorId id);

  // Takes a block in `pool`, or by default in the fastest pool with room. Returns false if there is
  // none.
  bool TakeOutsideBlock(TensorId id, std::optional<PoolId> pool = std::nullopt);
  // Drops the copy outside, if there is one, because it is stale or no longer needed.
  void DropOutsideCopy(TensorId id);
  // Ends the life of a storage: gives back all its blocks.
  void Drop(TensorId id);

  Workspace TakeWorkspace(OpId op, Bytes size);
  // Gives the workspace back. `issued` is the op that used it.
  void GiveWorkspace(const Workspace& workspace, Event issued);

  // Reserves one block that the storages share for the whole run. REQUIRES: none has a block.
  void Reserve(std::span<const TensorId> storages, Bytes size);
  // Reserves a workspace for all ops. Returns false if there is one already.
  bool ReserveWorkspace(Bytes size);
  // Reserves a workspace for this op only. Returns false if there is one already.
  bool ReserveWorkspaceFor(OpId op, Bytes size);

  // Ends the run because no block outside is free for the storage. `pool` is named in the failure.
  [[noreturn]] void FailOutside(TensorId id, PoolId pool) const;

 private:
  // A block that storages or workspaces use one after the other, for the whole run.
  struct Reservation {
    Block block;
    Bytes requested;
    TensorId occupant = kNoTensor;
    std::string what;
  };

  Allocator& PoolAt(PoolId pool) const { return *parts_.pools[NumberOf(pool)]; }
  const std::string& NameOf(TensorId id) const { return parts_.trace->tensor(id).name; }
  // Tells the backend about the arena's new driver calls.
  void PassDriverCalls();
  // Take or leave the hazards between owners. Hazards follow the memory behind a block's addresses.
  WaitSet TakeHazards(const Block& block);
  void LeaveHazards(const Block& block, const WaitSet& touched);
  // Makes `block` the device block of the storage.
  void Own(TensorId id, const Block& block, Hint hint);
  void Enter(TensorId id, Reservation& reservation);
  void NoteAllocated(TensorId id, Bytes requested, const Block& block, Hint hint);
  void GiveBlock(TensorId id, Bytes requested, const Block& block);
  // Ends the use of a block that stays reserved.
  void LeaveReserved(TensorId id, Bytes requested, const Block& block);
  // Returns a reservation in which the op's workspace fits: the op's own, else the one for all ops;
  // nullptr if there is none.
  const Reservation* ReservedWorkspace(OpId op, Bytes size) const;
  uint32_t AddReservation(Bytes size, std::string what);
  // Allocates on the device. If no block is free, the policy is asked to make room. A failure names
  // the request by `what()`.
  template <typename What>
  Block AllocateOrFail(Bytes size, Hint hint, What what);
  // Makes further blocks of the device come from the memory of a lane.
  void UseLane(uint8_t lane);
  // Asks the policy to make room once; returns false if it cannot.
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
  uint8_t lane_ = 0;  // from whose memory the arena takes blocks

  std::vector<Storage> storages_;  // by tensor; only roots are used
  std::vector<Reservation> reservations_;
  std::optional<uint32_t> workspace_reservation_;
  std::map<OpId, uint32_t> workspace_reservations_;
  std::optional<Block> workspace_;  // a block of the arena, held by the op being prepared
  HazardMap device_hazards_;
  const std::vector<PoolId> by_speed_;
  std::array<HazardMap, kMaxPools> outside_hazards_;  // by number of the pool
  uint64_t blocks_given_ = 0;
  PageTable pages_;
  std::vector<DriverCall>& mappings_;
  size_t driver_calls_ = 0;  // number of the arena's calls that the backend knows of
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_MEMORY_TABLE_H_
