#include "sim/core/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/command_log.h"
#include "sim/core/error.h"
#include "sim/core/hazard_map.h"
#include "sim/core/op_table.h"
#include "sim/core/rebuild.h"
#include "sim/core/repeated_log.h"
#include "traces/liveness.h"

namespace spillway {
namespace {

constexpr uint32_t kNotReserved = 0xffffffff;

// What the runtime knows of one storage. `device` and `host` are meaningful as `residency` says.
struct Storage {
  Bytes size;
  Residency residency = Residency::kNone;
  bool persistent = false;   // lives across iterations
  uint32_t pins = 0;         // ops that need it where it is
  uint32_t issued_uses = 0;  // uses by ops of the trace issued in this iteration
  uint32_t reservation = kNotReserved;
  Block device;
  Block host;
  Hazards device_hazards;
  Hazards host_hazards;
};

// A block that one or several storages, or workspaces, use in turn for the whole run.
struct Reservation {
  Block block;
  Bytes requested;
  TensorId occupant = kNoTensor;
  std::string what;
};

// The workspace of one op; all zero if it needs none.
struct Workspace {
  Block block;
  Bytes requested;
  WaitSet inherited;  // what its first writer waits for
};

// Unwinds a run whose workload does not fit.
struct DoesNotFit {
  OutOfMemory reason;
};

bool OnDevice(Residency residency) {
  return residency == Residency::kDevice || residency == Residency::kBoth;
}

class Runtime final : public PolicyContext {
 public:
  Runtime(const RuntimeParts& parts, const RuntimeOptions& options)
      : parts_(parts),
        options_(options),
        trace_(*parts.trace),
        liveness_(trace_),
        planner_(trace_, liveness_),
        ops_(trace_, liveness_, *parts.cost),
        storages_(trace_.tensors.size()) {
    for (size_t i = 0; i < storages_.size(); ++i) {
      storages_[i].size = trace_.tensors[i].size;
      const TensorKind kind = trace_.tensors[i].kind;
      storages_[i].persistent =
          kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
    }
  }

  Report Run() {
    try {
      StartRun();
      Iterate();
    } catch (DoesNotFit& failure) {
      report_.out_of_memory = std::move(failure.reason);
      decisions_.End();
      placements_.End();
      commands_.Abandon();
    }
    report_.bounds = ComputeBounds();
    return std::move(report_);
  }

  // --- PolicyContext: verbs ---------------------------------------------------------------------

  bool Offload(TensorId tensor) override {
    const TensorId id = liveness_.Root(tensor);
    Storage& storage = At(id);
    return Log(Verb::kOffload, id, [&] {
      if (storage.pins > 0) return false;
      if (storage.residency == Residency::kBoth) return true;
      if (storage.residency != Residency::kDevice || !TakeHostBlock(id)) return false;
      CopyToHost(id);
      storage.residency = Residency::kBoth;
      return true;
    });
  }

  bool Release(TensorId tensor) override {
    const TensorId id = liveness_.Root(tensor);
    return Log(Verb::kRelease, id, [&] {
      Storage& storage = At(id);
      if (storage.pins > 0 || storage.residency != Residency::kBoth) return false;
      GiveDeviceBlock(id);
      storage.residency = Residency::kHost;
      return true;
    });
  }

  bool Prefetch(TensorId tensor) override {
    const TensorId id = liveness_.Root(tensor);
    return Log(Verb::kPrefetch, id, [&] {
      Storage& storage = At(id);
      if (storage.pins > 0 || storage.residency != Residency::kHost) return false;
      if (storage.reservation != kNotReserved) {
        Reservation& reservation = reservations_[storage.reservation];
        if (reservation.occupant != kNoTensor) return false;
        Enter(id, reservation);
      } else {
        const Bytes size = At(id).size;
        const auto block = parts_.arena->Allocate(size, parts_.policy->PlacementHint(*this, id));
        if (!block) return false;
        Own(id, size, *block);
      }
      CopyToDevice(id);
      return true;
    });
  }

  bool Evict(TensorId tensor) override {
    const TensorId id = liveness_.Root(tensor);
    return Log(Verb::kEvict, id, [&] {
      Storage& storage = At(id);
      const std::optional<OpId> next = NextUse(id);
      if (storage.pins > 0 || storage.persistent || !OnDevice(storage.residency) || !next) {
        return false;
      }
      const auto available = [&](TensorId other) {
        return other != id && AvailableAt(other, *next);
      };
      if (!planner_.Plan(id, *next, available)) return false;
      DropHostCopy(id);
      GiveDeviceBlock(id);
      storage.residency = Residency::kEvicted;
      return true;
    });
  }

  void Fence() override {
    commands_.Fence();
    Log(Verb::kFence, kNoTensor, [] { return true; });
  }

  bool Reserve(std::span<const TensorId> tensors, Bytes at_least) override {
    if (!planning_) throw PolicyError("Reserve was called outside Plan");
    if (tensors.empty()) return false;
    Bytes size = at_least;
    for (const TensorId tensor : tensors) {
      const TensorId id = liveness_.Root(tensor);
      const Storage& storage = At(id);
      if (storage.persistent || storage.residency != Residency::kNone ||
          storage.reservation != kNotReserved) {
        return Log(Verb::kReserve, id, [] { return false; });
      }
      size = std::max(size, trace_.tensor(id).size);
    }
    const auto index = static_cast<uint32_t>(reservations_.size());
    AddReservation(size, fmt::format("the block reserved for {}", trace_.tensor(tensors[0]).name));
    for (const TensorId tensor : tensors) {
      const TensorId id = liveness_.Root(tensor);
      At(id).reservation = index;
      Log(Verb::kReserve, id, [] { return true; });
    }
    return true;
  }

  bool ReserveWorkspace(Bytes size) override {
    if (!planning_) throw PolicyError("ReserveWorkspace was called outside Plan");
    return Log(Verb::kReserveWorkspace, kNoTensor, [&] {
      if (workspace_reservation_ || size <= Bytes(0)) return false;
      workspace_reservation_ = static_cast<uint32_t>(reservations_.size());
      AddReservation(size, "the reserved workspace");
      return true;
    });
  }

  Report WhatIf(Policy& policy) const override {
    if (!parts_.trial) throw PolicyError("WhatIf is not available in this run");
    return parts_.trial(policy);
  }

  // --- PolicyContext: facts ---------------------------------------------------------------------

  Residency Where(TensorId tensor) const override { return At(liveness_.Root(tensor)).residency; }
  bool Pinned(TensorId tensor) const override { return At(liveness_.Root(tensor)).pins > 0; }
  std::optional<OpId> NextUse(TensorId tensor) const override {
    const TensorId id = liveness_.Root(tensor);
    const auto uses = liveness_.Uses(id);
    const uint32_t issued = At(id).issued_uses;
    return issued < uses.size() ? std::optional(uses[issued]) : std::nullopt;
  }
  MemoryStats Stats() const override { return parts_.arena->Stats(); }
  const Trace& trace() const override { return trace_; }
  const Liveness& liveness() const override { return liveness_; }
  const Device& device() const override { return *parts_.device; }
  const CostModel& cost() const override { return *parts_.cost; }
  std::span<const Kernel> kernels(OpId op, size_t slot) const override {
    return ops_.kernels(op, slot);
  }
  std::optional<OpId> recomputing() const override { return recomputing_; }

 private:
  Storage& At(TensorId id) { return storages_[Index(id)]; }
  const Storage& At(TensorId id) const { return storages_[Index(id)]; }

  // Runs a verb and logs its outcome.
  template <typename Action>
  bool Log(Verb verb, TensorId tensor, Action action) {
    const bool done = action();
    decisions_.Append({op_, verb, done, tensor, {}});
    return done;
  }

  // --- The run ----------------------------------------------------------------------------------

  void StartRun() {
    for (size_t i = 0; i < storages_.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (!storages_[i].persistent || liveness_.Root(id) != id) continue;
      TakeDeviceBlock(id);
    }
    // Room for the logs of a policy that moves most activations; memory is used only as it fills.
    report_.decisions.reserve(4 * trace_.ops.size());
    report_.placements.reserve(6 * trace_.ops.size());
    report_.timeline.reserve(2 * trace_.ops.size());
    report_.waits.reserve(2 * trace_.ops.size());
    planning_ = true;
    parts_.policy->Plan(*this);
    planning_ = false;
    decisions_.End();
    planned_ = report_.decisions;
  }

  void Iterate() {
    for (report_.iterations = 1;; ++report_.iterations) {
      report_.steady = RunIteration();
      Duration time;
      for (const TimelineEntry& entry : report_.timeline) time = std::max(time, entry.interval.end);
      report_.shortest = report_.iterations == 1 ? time : std::min(report_.shortest, time);
      report_.longest = std::max(report_.longest, time);
      if (report_.steady || report_.iterations >= options_.max_iterations) break;
    }
    report_.metrics = ComputeMetrics(report_);
    report_.pinning = report_.metrics.pinned_peak > Bytes(0)
                          ? parts_.device->host_malloc.At(report_.metrics.pinned_peak)
                          : Duration();
  }

  // True if the iteration was like the one before in decisions, placements and times.
  bool RunIteration() {
    decisions_.Begin();
    placements_.Begin();
    commands_.BeginIteration();
    for (const Decision& decision : planned_) decisions_.Append(decision);
    device_hazards_.Clear();
    host_hazards_.Clear();
    for (Storage& storage : storages_) {
      storage.issued_uses = 0;
      storage.device_hazards = storage.host_hazards = Hazards();
    }
    op_ = OpId{0};
    LogHeldBlocks();
    ArriveInputs();
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      op_ = static_cast<OpId>(i);
      Step(op_, /*again=*/false);
    }
    parts_.backend->Synchronize();
    bool same = decisions_.End();
    same = placements_.End() && same;
    return commands_.EndIteration(parts_.backend->TakeTimeline()) && same;
  }

  // The blocks that are held from before the iteration open its placement log.
  void LogHeldBlocks() {
    for (const Reservation& reservation : reservations_) {
      LogPlacement(PlacementKind::kAllocate, kNoTensor, reservation.requested, reservation.block);
    }
    for (size_t i = 0; i < storages_.size(); ++i) {
      const Storage& storage = storages_[i];
      const auto id = static_cast<TensorId>(i);
      const Bytes size = At(id).size;
      if (OnDevice(storage.residency)) {
        LogPlacement(PlacementKind::kAllocate, id, size, storage.device);
      }
      if (storage.residency == Residency::kBoth || storage.residency == Residency::kHost) {
        LogPlacement(PlacementKind::kAllocate, id, size, storage.host, /*host=*/true);
      }
    }
  }

  void ArriveInputs() {
    for (size_t i = 0; i < storages_.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (trace_.tensor(id).kind != TensorKind::kInput || liveness_.Root(id) != id) continue;
      if (liveness_.Uses(id).empty()) continue;
      if (options_.charge_input && !TakeHostBlock(id)) {
        FailHost(id);
      }
      TakeDeviceBlock(id);
      if (options_.charge_input) CopyToDevice(id);
    }
  }

  // Runs one op: an op of the trace, or one that runs again to rebuild something.
  void Step(OpId op_id, bool again) {
    const auto storages = liveness_.Storages(op_id);
    for (const TensorId id : storages) ++At(id).pins;

    parts_.policy->BeforeOp(*this, op_id);
    for (const Operand& input : ops_.Inputs(op_id)) MakeResident(input.storage);
    for (const Operand& written : ops_.Written(op_id)) MakeWritable(written.storage);
    ChoosePlan(op_id);
    const Workspace workspace = TakeWorkspace(plan_workspace_);
    parts_.policy->BeforeLaunch(*this, op_id);

    const Event issued = Issue(op_id, again, workspace);

    GiveWorkspace(workspace, issued);
    for (const TensorId id : storages) {
      Storage& storage = At(id);
      --storage.pins;
      if (!again) ++storage.issued_uses;
      if (storage.pins == 0 && !storage.persistent && !NextUse(id)) Drop(id);
    }
    parts_.policy->AfterOp(*this, op_id);
  }

  Event Issue(OpId op_id, bool again, const Workspace& workspace) {
    WaitSet fetch, memory;
    for (const Operand& input : ops_.Inputs(op_id)) {
      fetch.Add(At(input.storage).device_hazards.ForRead());
    }
    for (const Operand& written : ops_.Written(op_id)) {
      memory.Add(At(written.storage).device_hazards.ForWrite());
    }
    memory.Add(workspace.inherited);

    TimelineEntry entry;
    entry.kind = CommandKind::kKernel;
    entry.recompute = again;
    entry.op = op_id;
    entry.size = workspace.requested;
    entry.device = workspace.block;
    entry.nominal = plan_time_;
    commands_.Begin(entry);
    commands_.AddWaits(Stream::kCompute, fetch, WaitCause::kFetch, entry);
    commands_.AddWaits(Stream::kCompute, memory, WaitCause::kMemory, entry);
    commands_.AddFence(entry);
    if (again) decisions_.Append({op_id, Verb::kRecompute, true, kNoTensor, {}});
    for (const KernelRun& run : plan_) {
      decisions_.Append({op_id, Verb::kRun, true, kNoTensor, run});
    }

    Locate(ops_.Inputs(op_id), inputs_);
    Locate(ops_.Outputs(op_id), outputs_);
    Locate(ops_.Scratch(op_id), scratch_);
    Launch launch;
    launch.trace = &trace_;
    launch.op = op_id;
    launch.recompute = again;
    launch.runs = plan_;
    launch.inputs = inputs_;
    launch.outputs = outputs_;
    launch.scratch = scratch_;
    launch.workspace = workspace.block;
    launch.time = entry.nominal;
    launch.traffic = ops_.traffic(op_id);
    entry.event = parts_.backend->Enqueue(launch, commands_.WaitsOf(entry));
    for (const Operand& input : ops_.Inputs(op_id)) {
      At(input.storage).device_hazards.NoteRead(entry.event);
    }
    for (const Operand& written : ops_.Written(op_id)) {
      At(written.storage).device_hazards.NoteWrite(entry.event);
    }
    commands_.Commit(entry);
    for (const Operand& output : ops_.Outputs(op_id)) DropHostCopy(output.storage);
    return entry.event;
  }

  // Where the operands lie on the device.
  void Locate(std::span<const Operand> operands, std::vector<Block>& blocks) const {
    blocks.clear();
    for (const Operand& operand : operands) {
      blocks.push_back({At(operand.storage).device.offset, operand.size});
    }
  }

  // --- Kernels ----------------------------------------------------------------------------------

  // Asks the policy how to run the op: fills `plan_`, its time and its workspace. Throws
  // `PolicyError` unless the plan covers each slot, in order, with the whole batch.
  void ChoosePlan(OpId op_id) {
    KernelPlan chosen = parts_.policy->ChooseKernels(*this, op_id);
    plan_time_ = Duration();
    plan_workspace_ = Bytes(0);
    if (chosen.empty()) {
      plan_.clear();
      for (uint32_t slot = 0; slot < ops_.slots(op_id); ++slot) {
        plan_.push_back({slot, 0, ops_.batch(op_id)});
        AddToPlan(kernels(op_id, slot).front());
      }
      return;
    }
    const Op& op = trace_.op(op_id);
    plan_ = std::move(chosen);
    size_t slot = 0;
    int64_t left = op.batch;
    for (const KernelRun& run : plan_) {
      if (slot < op.slots.size() && left == 0) ++slot, left = op.batch;
      if (run.slot != slot || slot >= op.slots.size() || run.batch < 1 || run.batch > left) {
        throw PolicyError(fmt::format(
            "ChooseKernels({}): slot {} with batch {} does not continue slot {} with {} samples "
            "left",
            op.name, run.slot, run.batch, slot, left));
      }
      const auto candidates = run.batch == op.batch ? kernels(op_id, run.slot)
                                                    : parts_.cost->Kernels(op, run.slot, run.batch);
      if (run.kernel >= candidates.size()) {
        throw PolicyError(fmt::format("ChooseKernels({}): kernel {} of slot {}, which has {}",
                                      op.name, run.kernel, op.slots[slot].name, candidates.size()));
      }
      left -= run.batch;
      AddToPlan(candidates[run.kernel]);
    }
    if (slot + 1 != op.slots.size() || left != 0) {
      throw PolicyError(
          fmt::format("ChooseKernels({}): the plan ends in slot {} of {} with {} samples left",
                      op.name, slot, op.slots.size(), left));
    }
  }

  void AddToPlan(const Kernel& kernel) {
    plan_time_ += kernel.time;
    plan_workspace_ = std::max(plan_workspace_, kernel.workspace);
  }

  // --- Residency --------------------------------------------------------------------------------

  // True if the storage will hold its contents when `at` is reached, without running anything
  // again.
  bool AvailableAt(TensorId id, OpId at) const {
    const Storage& storage = At(id);
    if (storage.residency == Residency::kNone || storage.residency == Residency::kEvicted) {
      return false;
    }
    const auto last = liveness_.LastUse(id);
    return storage.persistent || (last && *last >= at);
  }

  void MakeResident(TensorId id) {
    Storage& storage = At(id);
    switch (storage.residency) {
      case Residency::kDevice:
      case Residency::kBoth:
        return;
      case Residency::kHost:
        Log(Verb::kFetch, id, [] { return true; });
        PlaceOnDevice(id);
        CopyToDevice(id);
        return;
      case Residency::kNone:
      case Residency::kEvicted:
        Rebuild(id);
        return;
    }
  }

  // Gives the storage a block for an op that writes it.
  void MakeWritable(TensorId id) {
    Storage& storage = At(id);
    if (OnDevice(storage.residency)) return;
    DropHostCopy(id);
    TakeDeviceBlock(id);
  }

  void Rebuild(TensorId target) {
    const OpId at = op_;
    const auto available = [&](TensorId id) {
      const Residency residency = At(id).residency;
      return id != target && (OnDevice(residency) || residency == Residency::kHost);
    };
    const auto ops = planner_.Plan(target, at, available);
    if (!ops) {
      throw PolicyError(fmt::format("tensor '{}' was evicted and cannot be rebuilt for op '{}'",
                                    trace_.tensor(target).name, trace_.op(at).name));
    }
    const std::optional<OpId> outer = std::exchange(recomputing_, at);
    // Whatever the ops need stays until the last of them that needs it has been issued.
    for (const OpId op : *ops) {
      for (const TensorId id : liveness_.Storages(op)) ++At(id).pins;
    }
    for (const OpId op : *ops) {
      for (const TensorId id : liveness_.Storages(op)) --At(id).pins;
      Step(op, /*again=*/true);
    }
    recomputing_ = outer;
  }

  // --- Blocks -----------------------------------------------------------------------------------

  // A block for a storage whose contents are about to be written, or have arrived.
  void TakeDeviceBlock(TensorId id) {
    PlaceOnDevice(id);
    At(id).residency = Residency::kDevice;
  }

  void PlaceOnDevice(TensorId id) {
    Storage& storage = At(id);
    if (storage.reservation != kNotReserved) {
      Reservation& reservation = reservations_[storage.reservation];
      if (reservation.occupant != kNoTensor) {
        throw PolicyError(fmt::format(
            "op '{}': '{}' and '{}' share a reserved block but are live at "
            "the same time",
            trace_.op(op_).name, trace_.tensor(id).name, trace_.tensor(reservation.occupant).name));
      }
      Enter(id, reservation);
      return;
    }
    const Hint hint = parts_.policy->PlacementHint(*this, id);
    const Bytes size = At(id).size;
    Own(id, size, AllocateOrFail(size, hint, [&] { return trace_.tensor(id).name; }));
  }

  // Notes that the storage has a new block.
  void Own(TensorId id, Bytes requested, const Block& block) {
    At(id).device = block;
    At(id).device_hazards = Hazards(device_hazards_.Take(block));
    NoteAllocated(id, requested, block);
  }

  void Enter(TensorId id, Reservation& reservation) {
    reservation.occupant = id;
    At(id).device = {reservation.block.offset, At(id).size};
    At(id).device_hazards = Hazards(device_hazards_.Take(At(id).device));
    LogPlacement(PlacementKind::kEnter, id, At(id).size, At(id).device);
  }

  void GiveDeviceBlock(TensorId id) {
    Storage& storage = At(id);
    ++blocks_given_;
    device_hazards_.Leave(storage.device, storage.device_hazards.ForWrite());
    if (storage.reservation != kNotReserved) {
      reservations_[storage.reservation].occupant = kNoTensor;
      LogPlacement(PlacementKind::kLeave, id, storage.size, storage.device);
      return;
    }
    GiveBlock(id, storage.size, storage.device);
  }

  void NoteAllocated(TensorId id, Bytes requested, const Block& block) {
    parts_.backend->OnAllocate(block);
    LogPlacement(PlacementKind::kAllocate, id, requested, block);
  }

  void GiveBlock(TensorId id, Bytes requested, const Block& block) {
    parts_.arena->Free(block);
    parts_.backend->OnFree(block);
    LogPlacement(PlacementKind::kFree, id, requested, block);
  }

  // Ends a storage's life: everything that it holds is given back.
  void Drop(TensorId id) {
    Storage& storage = At(id);
    if (OnDevice(storage.residency)) GiveDeviceBlock(id);
    DropHostCopy(id);
    storage.residency = Residency::kNone;
  }

  bool TakeHostBlock(TensorId id) {
    const Bytes size = At(id).size;
    const auto block = parts_.host_pool->Allocate(size);
    if (!block) return false;
    At(id).host = *block;
    At(id).host_hazards = Hazards(host_hazards_.Take(*block));
    LogPlacement(PlacementKind::kAllocate, id, size, *block, /*host=*/true);
    return true;
  }

  // Forgets the host copy, if there is one: it is stale, or no longer needed.
  void DropHostCopy(TensorId id) {
    Storage& storage = At(id);
    if (storage.residency != Residency::kBoth && storage.residency != Residency::kHost) return;
    parts_.host_pool->Free(storage.host);
    host_hazards_.Leave(storage.host, storage.host_hazards.ForWrite());
    LogPlacement(PlacementKind::kFree, id, storage.size, storage.host, /*host=*/true);
    storage.residency =
        storage.residency == Residency::kBoth ? Residency::kDevice : Residency::kNone;
  }

  Workspace TakeWorkspace(Bytes size) {
    Workspace workspace;
    if (size == Bytes(0)) return workspace;
    workspace.requested = size;
    if (UsesReservedWorkspace(size)) {
      workspace.block = {reservations_[*workspace_reservation_].block.offset, size};
      LogPlacement(PlacementKind::kEnter, kNoTensor, size, workspace.block);
    } else {
      workspace.block =
          AllocateOrFail(size, Hint::kLow, [] { return std::string("the workspace"); });
      NoteAllocated(kNoTensor, size, workspace.block);
    }
    workspace.inherited = device_hazards_.Take(workspace.block);
    return workspace;
  }

  // Gives it back after the op that `issued` stands for.
  void GiveWorkspace(const Workspace& workspace, Event issued) {
    const Bytes size = workspace.requested;
    if (size == Bytes(0)) return;
    WaitSet touched = workspace.inherited;
    touched.Add(issued);
    device_hazards_.Leave(workspace.block, touched);
    if (UsesReservedWorkspace(size)) {
      LogPlacement(PlacementKind::kLeave, kNoTensor, size, workspace.block);
    } else {
      GiveBlock(kNoTensor, size, workspace.block);
    }
  }

  bool UsesReservedWorkspace(Bytes size) const {
    return workspace_reservation_ && reservations_[*workspace_reservation_].requested >= size;
  }

  void AddReservation(Bytes size, std::string what) {
    const Block block = AllocateOrFail(size, Hint::kLow, [&] { return what; });
    parts_.backend->OnAllocate(block);
    reservations_.push_back({block, size, kNoTensor, std::move(what)});
  }

  // Allocates on the device; where no block is free the policy is asked to make room.
  template <typename What>
  Block AllocateOrFail(Bytes size, Hint hint, What what) {
    for (;;) {
      if (const auto block = parts_.arena->Allocate(size, hint)) return *block;
      const uint64_t given = blocks_given_;
      if (!parts_.policy->OnAllocFailure(*this, size)) throw DoesNotFit{Describe(size, what())};
      if (blocks_given_ == given) {
        throw PolicyError(
            fmt::format("OnAllocFailure said true at op '{}' without having released "
                        "or evicted anything ({} bytes wanted)",
                        trace_.op(op_).name, size.count()));
      }
    }
  }

  OutOfMemory Describe(Bytes wanted, std::string what) const {
    OutOfMemory reason;
    reason.op = op_;
    reason.op_name = planning_ || trace_.ops.empty() ? "before the first op" : trace_.op(op_).name;
    reason.what = std::move(what);
    reason.wanted = wanted;
    reason.capacity = parts_.device->memory;
    reason.stats = parts_.arena->Stats();
    for (const Reservation& reservation : reservations_) {
      reason.holders.push_back({reservation.what, reservation.block.size});
    }
    for (size_t i = 0; i < storages_.size(); ++i) {
      const Storage& storage = storages_[i];
      if (!OnDevice(storage.residency) || storage.reservation != kNotReserved) continue;
      reason.holders.push_back({trace_.tensors[i].name, storage.device.size});
    }
    std::stable_sort(reason.holders.begin(), reason.holders.end(),
                     [](const auto& a, const auto& b) { return a.size > b.size; });
    return reason;
  }

  [[noreturn]] void FailHost(TensorId id) const {
    OutOfMemory reason;
    reason.op = op_;
    reason.op_name = trace_.op(op_).name;
    reason.host = true;
    reason.what = trace_.tensor(id).name;
    reason.wanted = trace_.tensor(id).size;
    reason.capacity = parts_.device->host_memory;
    reason.stats = parts_.host_pool->Stats();
    throw DoesNotFit{std::move(reason)};
  }

  void LogPlacement(PlacementKind kind, TensorId id, Bytes requested, const Block& block,
                    bool host = false) {
    const Allocator& allocator = host ? *parts_.host_pool : *parts_.arena;
    placements_.Append({kind, host, op_, id, static_cast<uint32_t>(commands_.issued()), requested,
                        block, allocator.Reserved()});
  }

  // --- Copies, waits and times ------------------------------------------------------------------

  // REQUIRES: the storage has a device block and a host block.
  void CopyToHost(TensorId id) {
    Storage& storage = At(id);
    WaitSet source;
    source.Add(storage.device_hazards.ForRead());
    const Event event = Copy(id, Direction::kToHost, source, storage.host_hazards.ForWrite());
    storage.device_hazards.NoteRead(event);
    storage.host_hazards.NoteWrite(event);
  }

  // REQUIRES: the storage has a device block and a host block.
  void CopyToDevice(TensorId id) {
    Storage& storage = At(id);
    WaitSet source;
    source.Add(storage.host_hazards.ForRead());
    const Event event = Copy(id, Direction::kToDevice, source, storage.device_hazards.ForWrite());
    storage.host_hazards.NoteRead(event);
    storage.device_hazards.NoteWrite(event);
    storage.residency = Residency::kBoth;
  }

  Event Copy(TensorId id, Direction direction, const WaitSet& source, const WaitSet& memory) {
    const Bytes size = At(id).size;
    const Block device{At(id).device.offset, size};
    const Block host{At(id).host.offset, size};
    const bool to_host = direction == Direction::kToHost;
    const Stream stream = to_host ? Stream::kToHost : Stream::kToDevice;
    TimelineEntry entry;
    entry.kind = to_host ? CommandKind::kToHost : CommandKind::kToDevice;
    entry.op = op_;
    entry.tensor = id;
    entry.size = size;
    entry.device = device;
    entry.host = host;
    entry.nominal = parts_.cost->CopyTime(direction, size);
    commands_.Begin(entry);
    commands_.AddWaits(stream, source, WaitCause::kSource, entry);
    commands_.AddWaits(stream, memory, WaitCause::kMemory, entry);
    entry.event = parts_.backend->Copy(direction, device, host, size, commands_.WaitsOf(entry));
    commands_.Commit(entry);
    return entry.event;
  }

  Bounds ComputeBounds() const {
    Bounds bounds;
    std::array<Duration, kStreamCount> busy;
    Bytes moved;
    for (const TimelineEntry& entry : report_.timeline) {
      busy[Index(entry.event.stream)] += entry.nominal;
      if (entry.kind != CommandKind::kKernel) moved += entry.size;
    }
    bounds.compute = busy[Index(Stream::kCompute)];
    bounds.copy = std::max({busy[Index(Stream::kToDevice)], busy[Index(Stream::kToHost)],
                            TransferTime(moved, parts_.device->duplex)});
    bounds.layer = LayerBound(trace_, liveness_, parts_.device->alignment);
    return bounds;
  }

  const RuntimeParts& parts_;
  const RuntimeOptions& options_;
  const Trace& trace_;
  const Liveness liveness_;
  const RebuildPlanner planner_;
  const OpTable ops_;

  std::vector<Storage> storages_;  // by tensor; only roots are used
  std::vector<Reservation> reservations_;
  std::optional<uint32_t> workspace_reservation_;
  uint64_t blocks_given_ = 0;

  HazardMap device_hazards_;
  HazardMap host_hazards_;
  OpId op_{};  // the op of the trace being prepared or just issued
  std::optional<OpId> recomputing_;
  bool planning_ = false;
  std::vector<Decision> planned_;  // verbs called in Plan; they open each decision log
  Report report_;
  RepeatedLog<Decision> decisions_{report_.decisions};
  RepeatedLog<Placement> placements_{report_.placements};
  CommandLog commands_{report_};

  // Of the op being prepared; kept between ops to save allocations.
  KernelPlan plan_;
  Duration plan_time_;
  Bytes plan_workspace_;
  std::vector<Block> inputs_, outputs_, scratch_;
};

}  // namespace

Report Run(const RuntimeParts& parts, const RuntimeOptions& options) {
  return Runtime(parts, options).Run();
}

}  // namespace spillway
