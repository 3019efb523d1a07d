#include "sim/runtime/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "sim/runtime/checked_plan.h"
#include "sim/runtime/command_log.h"
#include "sim/runtime/memory_table.h"
#include "sim/runtime/op_facts.h"
#include "sim/runtime/operand_placer.h"
#include "sim/runtime/pins.h"
#include "sim/runtime/recompute.h"
#include "sim/runtime/repeated_log.h"
#include "sim/runtime/trace_facts.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::sim {
namespace {

class Runtime final : public PolicyContext {
 public:
  Runtime(const RuntimeParts& parts, const TraceFacts& facts, const RuntimeOptions& options)
      : parts_(parts),
        options_(options),
        trace_(*parts.trace),
        liveness_(facts.liveness),
        planner_(trace_, liveness_),
        evictions_(trace_.tensors.size()),
        ops_(facts.ops),
        hook_table_(facts.hooks),
        hooks_(hook_table_.hooks()),
        commands_(trace_, report_),
        memory_(parts, liveness_, commands_, report_,
                {[this](TensorId id) { return parts_.policy->PlacementHint(*this, id); },
                 [this](Bytes size) { return MakeRoom(size); }}),
        placer_(liveness_, ops_, memory_,
                [this](TensorId id, bool must) { return Bring(id, must); }) {
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const bool arrives = trace_.tensor(id).kind == TensorKind::kInput && liveness_.Root(id) == id;
      if (arrives && !liveness_.Uses(id).empty()) arrivals_.push_back(id);
    }
  }

  Report Run() {
    for (size_t i = 0; i < parts_.device->pools.size(); ++i) {
      report_.pools.emplace_back(NameOf(*parts_.device, OutsidePool(i + 1)));
    }
    try {
      StartRun();
      Iterate();
    } catch (DoesNotFit& failure) {
      report_.out_of_memory = std::move(failure.reason);
      decisions_.End();
      memory_.EndIteration();
      commands_.Abandon();
    }
    report_.bounds = ComputeBounds();
    report_.plan = parts_.policy->ExportPlan();
    return std::move(report_);
  }

  // --- PolicyContext: verbs ---------------------------------------------------------------------

  bool Do(const VerbCall& call) override {
    const TensorId id = liveness_.Root(call.tensor);
    const auto attempt = [&] {
      switch (call.verb) {
        case Verb::kOffload:
          return TryOffload(id, call.pool);
        case Verb::kRelease:
          return TryRelease(id);
        case Verb::kPrefetch:
          return TryPrefetch(id);
        case Verb::kEvict:
          return TryEvict(id);
        default:
          throw PolicyError(fmt::format("'{}' is no verb on a storage", Name(call.verb)));
      }
    };
    return Log(call.verb, id, attempt());
  }

  void Fence() override {
    commands_.Fence();
    Log(Verb::kFence, kNoTensor);
  }

  bool Reserve(std::span<const TensorId> tensors, Bytes at_least) override {
    if (!planning_) throw PolicyError("Reserve was called outside Plan");
    if (tensors.empty()) return false;
    std::vector<TensorId> ids;
    Bytes size = at_least;
    for (const TensorId tensor : tensors) {
      const TensorId id = liveness_.Root(tensor);
      const Storage& storage = At(id);
      if (storage.persistent || storage.residency != Residency::kNone ||
          storage.reservation != Storage::kNotReserved) {
        return Log(Verb::kReserve, id, Refusal::kUnknown);
      }
      ids.push_back(id);
      size = std::max(size, storage.size);
    }
    memory_.Reserve(ids, size);
    for (const TensorId id : ids) Log(Verb::kReserve, id);
    return true;
  }

  bool ReserveWorkspace(Bytes size) override {
    if (!planning_) throw PolicyError("ReserveWorkspace was called outside Plan");
    const bool done = size > Bytes(0) && memory_.ReserveWorkspace(size);
    return Log(Verb::kReserveWorkspace, kNoTensor, done ? Refusal::kNone : Refusal::kUnknown);
  }

  bool ReserveWorkspaceFor(OpId op, Bytes size) override {
    if (!planning_) throw PolicyError("ReserveWorkspaceFor was called outside Plan");
    const bool done = size > Bytes(0) && memory_.ReserveWorkspaceFor(op, size);
    return Log(Verb::kReserveWorkspace, kNoTensor, done ? Refusal::kNone : Refusal::kUnknown);
  }

  // --- PolicyContext: facts ---------------------------------------------------------------------

  Residency Where(TensorId tensor) const override { return At(liveness_.Root(tensor)).residency; }
  bool Pinned(TensorId tensor) const override {
    const Storage& storage = At(liveness_.Root(tensor));
    return storage.pins > 0 || storage.held;
  }
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
  Storage& At(TensorId id) { return memory_.At(id); }
  const Storage& At(TensorId id) const { return memory_.At(id); }

  bool MakeRoom(Bytes size) {
    making_room_ = true;
    const bool made = parts_.policy->OnAllocFailure(*this, size);
    making_room_ = false;
    return made;
  }

  // Logs a verb. Returns true iff it was not refused.
  bool Log(Verb verb, TensorId tensor, Refusal refusal = Refusal::kNone) {
    const bool done = refusal == Refusal::kNone;
    decisions_.Append({op_, verb, done, tensor, refusal, {}});
    return done;
  }

  // --- The verbs on storages --------------------------------------------------------------------

  Refusal TryOffload(TensorId id, std::optional<PoolId> pool) {
    const Storage& storage = At(id);
    if (storage.pins > 0 || !trace_.tensor(id).movable) return Refusal::kPinned;
    if (hooks_ != nullptr && !hooks_->offload) return Refusal::kUnknown;
    if (storage.residency == Residency::kBoth) return Refusal::kNone;
    if (arriving_ || storage.residency != Residency::kDevice) return Refusal::kUnknown;
    if (!storage.holds_outside && !memory_.TakeOutsideBlock(id, pool)) return Refusal::kFull;
    CopyOut(id);
    return Refusal::kNone;
  }

  Refusal TryRelease(TensorId id) {
    Storage& storage = At(id);
    if (storage.pins > 0 || storage.held) return Refusal::kPinned;
    if (storage.residency != Residency::kBoth) return Refusal::kUnknown;
    if (hooks_ != nullptr && making_room_ && op_ < hook_table_.FreeFrom(id)) {
      return Refusal::kPinned;
    }
    // The program's allocator reuses the memory in the order of its ops alone.
    if (hooks_ != nullptr) commands_.Fence(storage.outside_hazards.ForRead());
    memory_.GiveDeviceBlock(id);
    storage.residency = Residency::kOutside;
    return Refusal::kNone;
  }

  Refusal TryPrefetch(TensorId id) {
    const Storage& storage = At(id);
    if (storage.pins > 0) return Refusal::kPinned;
    if (arriving_ || storage.residency != Residency::kOutside) return Refusal::kUnknown;
    if (!memory_.TryPlaceOnDevice(id)) return Refusal::kFull;
    CopyToDevice(id);
    return Refusal::kNone;
  }

  Refusal TryEvict(TensorId id) {
    Storage& storage = At(id);
    const std::optional<OpId> next = NextUse(id);
    if (storage.pins > 0 || storage.held || !trace_.tensor(id).movable) return Refusal::kPinned;
    if (hooks_ != nullptr && !hooks_->evict) return Refusal::kUnknown;
    if (storage.persistent || !OnDevice(storage.residency) || !next) return Refusal::kUnknown;
    if (placer_.overwrites() && *next == op_) return Refusal::kPinned;
    // With this check, storages that were evicted earlier and are used sooner stay recomputable
    // without this one.
    if (!CanRecompute(id, *next)) return Refusal::kUnknown;
    // In forward, the program compares what it needs to run the ops again.
    if (hooks_ != nullptr && trace_.op(op_).phase == Phase::kForward) {
      parts_.backend->OnHostWork(*hooks_->evict);
    }
    evictions_.Note(id, *next);
    memory_.DropOutsideCopy(id);
    memory_.GiveDeviceBlock(id);
    storage.residency = Residency::kEvicted;
    return Refusal::kNone;
  }

  // --- The run ----------------------------------------------------------------------------------

  void StartRun() {
    arriving_ = true;
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const bool starts = At(id).persistent || std::ranges::count(arrivals_, id) > 0;
      At(id).lives_outside =
          starts && trace_.tensor(id).movable && parts_.policy->LivesOutside(trace_, id);
      if (At(id).persistent) Arrive(id);
    }
    arriving_ = false;
    // Reserves room for the logs of a policy that moves most activations. Memory is used only as
    // the logs fill.
    report_.decisions.reserve(4 * trace_.ops.size());
    report_.placements.reserve(6 * trace_.ops.size());
    report_.timeline.reserve(2 * trace_.ops.size());
    report_.waits.reserve(2 * trace_.ops.size());
    planning_ = true;
    parts_.policy->Plan(*this);
    planning_ = false;
    decisions_.End();
    planned_ = report_.decisions;
    if (commands_.issued() == 0) return;
    // Copies issued by the plan complete before the first iteration begins.
    Synchronize();
    parts_.backend->TakeTimeline();
  }

  void Synchronize() {
    WithContext([&] { parts_.backend->Synchronize(); },
                [&] {
                  return report_.iterations == 0
                             ? std::string("after Plan")
                             : fmt::format("in iteration {}", report_.iterations);
                });
  }

  void Iterate() {
    for (report_.iterations = 1;; ++report_.iterations) {
      report_.steady = RunIteration();
      Duration time;
      for (const TimelineEntry& entry : report_.timeline) time = std::max(time, entry.interval.end);
      report_.shortest = report_.iterations == 1 ? time : std::min(report_.shortest, time);
      report_.longest = std::max(report_.longest, time);
      if (options_.iterations > 0
              ? report_.iterations == options_.iterations
              : report_.steady || report_.iterations >= options_.max_iterations) {
        break;
      }
    }
    report_.metrics = ComputeMetrics(report_);
    report_.pinning = report_.metrics.pinned_peak > Bytes(0)
                          ? parts_.device->host_malloc.At(report_.metrics.pinned_peak)
                          : Duration();
  }

  // Returns true iff the iteration equals the one before in decisions, placements and times.
  bool RunIteration() {
    decisions_.Begin();
    for (const Decision& decision : planned_) decisions_.Append(decision);
    commands_.BeginIteration();
    choice_.BeginIteration();
    StartOp(OpId{0});
    evictions_ = Evictions(trace_.tensors.size());
    memory_.BeginIteration();
    ArriveInputs();
    for (const TensorId id : hook_table_.HeldAtFirst()) At(id).held = true;
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      StartOp(static_cast<OpId>(i));
      if (hooks_ != nullptr) RunHooks();
      Step(op_, /*again=*/false);
    }
    Synchronize();
    bool same = decisions_.End();
    same = memory_.EndIteration() && same;
    return commands_.EndIteration(parts_.backend->TakeTimeline()) && same;
  }

  void StartOp(OpId op) {
    op_ = op;
    memory_.SetOp(op);
  }

  // Runs the hooks before an op of a recorded program.
  void RunHooks() {
    parts_.backend->OnHostWork(hook_table_.HostTime(op_));
    for (const TensorId id : hook_table_.TakenBefore(op_)) At(id).held = true;
  }

  // Makes contents arrive from elsewhere, at the place where they start.
  void Arrive(TensorId id) {
    if (!At(id).lives_outside) {
      memory_.TakeDeviceBlock(id);
      parts_.backend->OnArrive(id, At(id).device, PoolId::kDevice);
      return;
    }
    if (!memory_.TakeOutsideBlock(id)) memory_.FailOutside(id, PoolId::kHost);
    At(id).residency = Residency::kOutside;
    parts_.backend->OnArrive(id, At(id).outside, At(id).pool);
  }

  // Sends a storage that lives outside back there after an op, unless the next op uses it, too.
  void GoBack(TensorId id) {
    Storage& storage = At(id);
    const std::optional<OpId> next = NextUse(id);
    if (!storage.lives_outside || storage.pins > 0 || !OnDevice(storage.residency)) return;
    if (next && Index(*next) <= Index(op_) + 1) return;
    if (storage.residency == Residency::kDevice) {
      // An input that was written has no block outside any more.
      if (!storage.holds_outside && !memory_.TakeOutsideBlock(id)) return;
      CopyOut(id);
      Log(Verb::kOffload, id);
    }
    memory_.GiveDeviceBlock(id);
    storage.residency = Residency::kOutside;
    Log(Verb::kRelease, id);
  }

  // Places the inputs of an iteration. Backends write the inputs at once, so no issued command may
  // touch their bytes. A policy that has to make room here can release storages with a copy
  // outside, but cannot start a copy.
  void ArriveInputs() {
    arriving_ = true;
    std::deque<ScopedPins> arrived;
    for (const TensorId& id : arrivals_) {
      arrived.emplace_back(memory_, std::span(&id, 1));
      if (At(id).lives_outside || !options_.charge_input) {
        Arrive(id);
        continue;
      }
      if (!memory_.TakeOutsideBlock(id, PoolId::kHost)) memory_.FailOutside(id, PoolId::kHost);
      memory_.TakeDeviceBlock(id);
      parts_.backend->OnArrive(id, At(id).outside, PoolId::kHost);
      CopyToDevice(id);
    }
    arriving_ = false;
  }

  // Runs one op: an op of the trace, or one that runs again to recompute a storage.
  void Step(OpId op_id, bool again) {
    const auto storages = liveness_.Storages(op_id);
    {
      const ScopedPins pins(memory_, storages);
      parts_.policy->BeforeOp(*this, op_id);
      again ? placer_.PlaceAgain(op_id) : placer_.Place(op_id);
      choice_.Take(op_id, parts_.policy->ChooseKernels(*this, op_id));
      const auto* other = again ? OtherWork(op_id) : nullptr;
      const Workspace workspace =
          memory_.TakeWorkspace(op_id, other ? other->workspace : choice_.workspace());
      parts_.policy->BeforeLaunch(*this, op_id);
      const Event issued = Issue(op_id, again, workspace);
      memory_.GiveWorkspace(workspace, issued);
    }
    if (hooks_ != nullptr && !again) {
      for (const TensorId id : hook_table_.GivenUpAfter(op_id)) At(id).held = false;
    }
    for (const TensorId id : storages) {
      Storage& storage = At(id);
      if (!again) ++storage.issued_uses;
      if (storage.pins == 0 && !storage.persistent && !NextUse(id)) memory_.Drop(id);
      GoBack(id);
    }
    parts_.policy->AfterOp(*this, op_id);
  }

  Event Issue(OpId op_id, bool again, const Workspace& workspace) {
    WaitSet fetch, memory;
    for (const Touched& input : ops_.Inputs(op_id)) {
      fetch.Add(At(input.storage).device_hazards.ForRead());
    }
    for (const Touched& written : ops_.Written(op_id)) {
      memory.Add(At(written.storage).device_hazards.ForWrite());
    }
    memory.Add(workspace.inherited);

    TimelineEntry entry;
    entry.kind = CommandKind::kKernel;
    entry.recompute = again;
    entry.collective = ops_.collective(op_id);
    entry.op = op_id;
    entry.size = workspace.requested;
    entry.device = workspace.block;
    const RecordedCost::Again* const other = again ? OtherWork(op_id) : nullptr;
    entry.nominal = other ? Scaled(other->time, trace_.op(op_id).recorded->time) : choice_.time();
    const Op& op = trace_.op(op_id);
    const Stream stream = StreamOfLane(op.lane);
    commands_.Begin(entry);
    commands_.AddWaits(stream, fetch, WaitCause::kFetch, entry);
    commands_.AddWaits(stream, memory, WaitCause::kMemory, entry);
    if (!op.after.empty()) {
      WaitSet lanes;
      for (const OpId before : op.after) lanes.Add(issued_[Index(before)]);
      commands_.AddWaits(stream, lanes, WaitCause::kLane, entry);
    }
    commands_.AddFence(stream, entry);
    if (again) decisions_.Append({op_id, Verb::kRecompute, true, kNoTensor, Refusal::kNone, {}});
    for (const KernelRun& run : choice_.runs()) {
      decisions_.Append({op_id, Verb::kRun, true, kNoTensor, Refusal::kNone, run});
    }

    Locate(ops_.Inputs(op_id), inputs_);
    Locate(ops_.Outputs(op_id), outputs_);
    Locate(ops_.Scratch(op_id), scratch_);
    Launch launch;
    launch.op = op_id;
    launch.type = ops_.type(op_id);
    launch.recompute = again;
    launch.runs = choice_.runs();
    launch.inputs = inputs_;
    launch.outputs = outputs_;
    launch.scratch = scratch_;
    launch.workspace = workspace.block;
    launch.time = entry.nominal;
    if (const auto& recorded = op.recorded) {
      launch.gap = recorded->gap;
      launch.host = other ? other->host : recorded->host;
    }
    launch.traffic = ops_.traffic(op_id);
    launch.arithmetic = ops_.arithmetic(op_id);
    launch.lane = op.lane;
    launch.collective = entry.collective;
    entry.event =
        WithContext([&] { return parts_.backend->Enqueue(launch, commands_.WaitsOf(entry)); },
                    [&] { return fmt::format("op '{}'", op.name); });
    issued_[Index(op_id)] = entry.event;
    for (const Touched& input : ops_.Inputs(op_id)) {
      At(input.storage).device_hazards.NoteRead(entry.event);
    }
    for (const Touched& written : ops_.Written(op_id)) {
      At(written.storage).device_hazards.NoteWrite(entry.event);
    }
    commands_.Commit(entry);
    for (const Touched& output : ops_.Outputs(op_id)) memory_.DropOutsideCopy(output.storage);
    return entry.event;
  }

  // Returns what the recorded program does to run the op again, or nullptr if it runs the op as it
  // did before.
  const RecordedCost::Again* OtherWork(OpId op) const {
    const auto& recorded = trace_.op(op).recorded;
    return recorded && recorded->again ? &*recorded->again : nullptr;
  }

  // Returns a recorded time as the cost model would give it: times of another device are scaled as
  // those of the op's own kernels are.
  Duration Scaled(Duration time, Duration recorded) const {
    if (recorded == Duration() || choice_.time() == recorded) return time;
    const Int128 scaled = Int128{time.picoseconds()} * choice_.time().picoseconds();
    return Duration::Picoseconds(static_cast<int64_t>(scaled / recorded.picoseconds()));
  }

  // Finds the blocks of the operands on the device.
  void Locate(std::span<const Touched> operands, std::vector<Block>& blocks) const {
    blocks.clear();
    for (const Touched& operand : operands) {
      blocks.push_back({At(operand.storage).device.offset + operand.offset, operand.size});
    }
  }

  // --- Residency --------------------------------------------------------------------------------

  // Returns true if the storage will hold its contents when `at` is reached, without running any op
  // again.
  bool AvailableAt(TensorId id, OpId at) const {
    const Storage& storage = At(id);
    if (storage.residency == Residency::kNone || storage.residency == Residency::kEvicted) {
      return false;
    }
    const auto uses = liveness_.Uses(id);
    return storage.persistent || (!uses.empty() && uses.back() >= at);
  }

  // Returns true if the storage's contents are needed from here on.
  bool Live(TensorId id) const { return At(id).persistent || NextUse(id).has_value(); }

  // Returns true if the storage can be recomputed when `at` is reached.
  bool CanRecompute(TensorId id, OpId at) {
    const auto live = [&](TensorId other) { return Live(other); };
    const auto available = [&](TensorId other) { return other != id && AvailableAt(other, at); };
    const auto known = [&](TensorId other) {
      return available(other) ||
             (At(other).residency == Residency::kEvicted && evictions_.CanRecompute(other, at));
    };
    // Without the ops of storages that are known to be recomputable, others may look stale.
    return planner_.Plan(id, at, known, live) || planner_.Plan(id, at, available, live);
  }

  // Fetches or recomputes a storage that is not on the device; see `OperandPlacer::Bring`.
  bool Bring(TensorId id, bool must) {
    switch (At(id).residency) {
      case Residency::kDevice:
      case Residency::kBoth:
        return true;
      case Residency::kOutside:
        if (must) {
          memory_.PlaceOnDevice(id);
        } else if (!memory_.TryPlaceOnDevice(id, /*ask=*/true)) {
          return false;
        }
        Log(Verb::kFetch, id);
        CopyToDevice(id);
        return true;
      case Residency::kNone:
      case Residency::kEvicted:
        Recompute(id);
        return true;
    }
    return true;
  }

  void Recompute(TensorId target) {
    const OpId at = op_;
    const auto available = [&](TensorId id) {
      const Residency residency = At(id).residency;
      return id != target && (OnDevice(residency) || residency == Residency::kOutside);
    };
    const auto plan = planner_.Plan(target, at, available, [&](TensorId id) { return Live(id); });
    if (!plan) {
      throw PolicyError(fmt::format("tensor '{}' was evicted and cannot be recomputed for op '{}'",
                                    trace_.tensor(target).name, trace_.op(at).name));
    }
    const std::optional<OpId> outer = std::exchange(recomputing_, at);
    // A storage that the ops need stays until the last op that needs it has been issued.
    std::deque<ScopedPins> needed;
    for (const OpId op : *plan) needed.emplace_back(memory_, liveness_.Storages(op));
    for (const OpId op : *plan) {
      needed.pop_front();
      Step(op, /*again=*/true);
    }
    recomputing_ = outer;
  }

  // --- Copies, waits and times ------------------------------------------------------------------

  // Issues the copy out of the device. REQUIRES: the storage has a block on the device and one
  // outside.
  void CopyOut(TensorId id) {
    Storage& storage = At(id);
    WaitSet source;
    source.Add(storage.device_hazards.ForRead());
    const Event event = Copy(id, Direction::kToHost, source, storage.outside_hazards.ForWrite());
    storage.device_hazards.NoteRead(event);
    storage.outside_hazards.NoteWrite(event);
    storage.residency = Residency::kBoth;
  }

  // Issues the copy to the device. REQUIRES: the storage has a block on the device and one outside.
  void CopyToDevice(TensorId id) {
    Storage& storage = At(id);
    WaitSet source;
    source.Add(storage.outside_hazards.ForRead());
    const Event event = Copy(id, Direction::kToDevice, source, storage.device_hazards.ForWrite());
    storage.outside_hazards.NoteRead(event);
    storage.device_hazards.NoteWrite(event);
    storage.residency = Residency::kBoth;
  }

  Event Copy(TensorId id, Direction direction, const WaitSet& source, const WaitSet& memory) {
    const Storage& storage = At(id);
    const Bytes size = storage.size;
    const PoolId pool = storage.pool;
    const Block device{storage.device.offset, size};
    const Block outside{storage.outside.offset, size};
    const bool to_host = direction == Direction::kToHost;
    const Stream stream = StreamOf(pool, direction);
    TimelineEntry entry;
    entry.kind = to_host ? CommandKind::kToHost : CommandKind::kToDevice;
    entry.op = op_;
    entry.tensor = id;
    entry.size = size;
    entry.device = device;
    entry.outside = outside;
    entry.nominal = CopyTimeOf(*parts_.cost, *parts_.device, pool, direction, size);
    commands_.Begin(entry);
    if (hooks_ != nullptr) {
      // The program starts copies where its ops are.
      const auto& work = storage.lives_outside ? hooks_->state
                         : to_host             ? hooks_->offload
                                               : hooks_->prefetch;
      parts_.backend->OnHostWork(work.value_or(Duration()));
      WaitSet issued;
      issued.Add(commands_.Newest(Stream::kCompute));
      commands_.AddWaits(stream, issued, WaitCause::kSource, entry);
    }
    commands_.AddWaits(stream, source, WaitCause::kSource, entry);
    commands_.AddWaits(stream, memory, WaitCause::kMemory, entry);
    entry.event = WithContext(
        [&] {
          return parts_.backend->Copy(pool, direction, device, outside, size,
                                      commands_.WaitsOf(entry));
        },
        [&] {
          return fmt::format("copy of '{}' to the {}, issued at op '{}'", trace_.tensor(id).name,
                             to_host ? NameOf(*parts_.device, pool) : "device",
                             trace_.op(op_).name);
        });
    commands_.Commit(entry);
    return entry.event;
  }

  Bounds ComputeBounds() const {
    Bounds bounds;
    std::array<Duration, kStreamCount> busy;
    std::array<Bytes, kMaxPools> moved;
    for (const TimelineEntry& entry : report_.timeline) {
      busy[Index(entry.event.stream)] += entry.nominal;
      if (entry.kind != CommandKind::kKernel) {
        moved[NumberOf(PoolOf(entry.event.stream))] += entry.size;
      }
    }
    bounds.compute = busy[Index(Stream::kCompute)];
    for (size_t lane = 1; lane < kMaxLanes; ++lane) {
      bounds.compute = std::max(bounds.compute, busy[Index(StreamOfLane(lane))]);
    }
    for (const PoolId pool : PoolsBySpeed(*parts_.device)) {
      bounds.copy = std::max({bounds.copy, busy[Index(StreamOf(pool, Direction::kToDevice))],
                              busy[Index(StreamOf(pool, Direction::kToHost))],
                              TransferTime(moved[NumberOf(pool)], DuplexOf(*parts_.device, pool))});
    }
    bounds.layer = LayerBound(trace_, liveness_, parts_.device->alignment,
                              [this](TensorId id) { return At(id).lives_outside; });
    return bounds;
  }

  const RuntimeParts& parts_;
  const RuntimeOptions& options_;
  const Trace& trace_;
  const Liveness& liveness_;
  RecomputePlanner planner_;
  Evictions evictions_;
  const OpTable& ops_;
  const StepHookTable& hook_table_;
  const StepHooks* const hooks_;  // nullptr: nothing below depends on hooks

  OpId op_{};  // the op of the trace being prepared or just issued
  std::optional<OpId> recomputing_;
  bool planning_ = false;
  bool making_room_ = false;       // the policy is asked to make room
  bool arriving_ = false;          // parameters or the inputs of an iteration are being placed
  std::vector<Decision> planned_;  // verbs called in Plan; each decision log begins with them
  Report report_;
  RepeatedLog<Decision> decisions_{report_.decisions};
  CommandLog commands_;
  MemoryTable memory_;
  OperandPlacer placer_;
  std::vector<TensorId> arrivals_;  // inputs that arrive before each iteration

  // State of the op being prepared, kept between ops to save allocations.
  CheckedPlan choice_{trace_, liveness_, ops_, *parts_.cost};
  std::vector<Block> inputs_, outputs_, scratch_;
  std::vector<Event> issued_ = std::vector<Event>(trace_.ops.size());  // by op: its latest run
};

}  // namespace

Report Run(const RuntimeParts& parts, const RuntimeOptions& options) {
  return Run(parts, TraceFacts(*parts.trace, *parts.cost), options);
}

Report Run(const RuntimeParts& parts, const TraceFacts& facts, const RuntimeOptions& options) {
  return Runtime(parts, facts, options).Run();
}

}  // namespace spillway::sim
