// A policy decides which tensors are in device memory and when they move. This header is the
// interface that a policy implements.
//
// A policy sees the trace, the device, the cost model and its own past decisions. It sees no clock
// and no completion of a command, and it cannot tell whether a simulator or a GPU executes the run:
// the same object makes the same decisions on both. Every hook has a default, so a policy overrides
// only the hooks that it needs. An object serves one run, and one thread calls its hooks.
//
// `Prepare`, `LivesOutside` and `Plan` are called before the first iteration. In each iteration the
// runtime then takes these steps for each op, in this order:
//
//   BeforeOp        Then the runtime fetches or recomputes the op's inputs, and allocates its
//                   outputs and scratch.
//   ChooseKernels   Then the runtime allocates the workspace.
//   BeforeLaunch    Then the runtime issues the op, and frees the workspace and every storage that
//                   has no further use.
//   AfterOp         The op has been issued. It may not have run yet.
//
// An op that runs again to recompute an evicted storage gets the same calls;
// `PolicyContext::recomputing` tells the two apart.

#ifndef SPILLWAY_SIM_CORE_POLICY_H_
#define SPILLWAY_SIM_CORE_POLICY_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "traces/base/units.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::sim {

class Policy;

// The options of a trial run.
struct TrialOptions {
  // The number of iterations. 0 repeats the iteration until two in a row agree, which takes at
  // least two. One is enough for a policy that starts each iteration afresh; a trial of one does
  // not charge for memory that the allocator takes from the driver as it grows.
  int iterations = 0;
  // The trial has this share of the bandwidth between device and host, in both directions.
  double link = 1;
  // The trace to run instead: the ops of the run's trace in another order. nullptr keeps the trace.
  std::shared_ptr<const Trace> reordered = nullptr;
};

// A function that predicts a run of a policy in `memory` bytes of device memory and returns its
// report. The run has the cost model, the allocator and the trace that `Policy::Prepare` was called
// with, and no imported plan. The report is deterministic. Several threads may make trials at the
// same time, each with its own policy object.
class TrialRun {
 public:
  using Function = std::function<Report(Policy&, Bytes memory, const TrialOptions&)>;

  TrialRun(Function run) : run_(std::move(run)) {}  // NOLINT(google-explicit-constructor)

  Report operator()(Policy& policy, Bytes memory, const TrialOptions& options = {}) const;

 private:
  Function run_;
};

// The result of `Policy::Prepare`: the trace and the memory for the run.
struct Preparation {
  // How much of the device's memory to use, more than 0. The run then cannot be told from a run on
  // a device that has no more. Less memory can be faster: with more, blocks lie elsewhere, which
  // may make other copies wait.
  Bytes memory;
  // The trace to run instead of the given one. nullopt keeps the given one.
  std::optional<Trace> trace = std::nullopt;
  // The decisions as a text from which `Prepare` of an equal policy decides the same without a
  // search, given the same trace, device and memory. Empty if the policy has no such text.
  std::string plan = {};
};

// The place of the current contents of a tensor's storage. A storage that is on the device may also
// have a copy outside, in the host's memory or in another pool.
enum class Residency : uint8_t {
  kNone,     // not written yet in this iteration, or no longer needed
  kDevice,   // on the device only
  kBoth,     // on the device, with a copy outside that has landed or is in flight
  kOutside,  // outside only, after a release
  kEvicted,  // dropped; the runtime recomputes it at its next use
};

// How the slots of an op run: a list of kernels, each with its part of the batch. An empty plan
// runs each slot with its fastest kernel on the whole batch.
using KernelPlan = std::vector<KernelRun>;

// A verb on a storage: to offload, release, prefetch or evict it.
struct VerbCall {
  Verb verb{};
  TensorId tensor{};
  std::optional<PoolId> pool = std::nullopt;  // for kOffload
};

// The verbs by which a policy acts, and the facts that it may read. A tensor argument stands for
// its whole storage, the root of `alias_of`. A verb that returns false has changed nothing.
//
// Each verb says below when it returns false. All verbs on a storage also return false while the
// storage is pinned:
//
// - From `BeforeOp` until the op is issued, the storages that the op uses are pinned.
// - `OnAllocFailure` may find an input of the op unpinned while the runtime brings the inputs to
//   the device and allocates the outputs. The input can then leave to make room, and the runtime
//   brings it back before the op. An input that the op also writes can leave only until the outputs
//   are allocated. If an operand still finds no block, the runtime asks `OnAllocFailure` for as
//   many bytes as all operands need together, while every input can leave, and then places all
//   operands anew. The inputs of an op that runs again stay pinned.
// - While parameters and inputs arrive, before the first op of an iteration, `OnAllocFailure` can
//   release storages that have a copy outside, but start no copy. A backend writes the arriving
//   contents at once, so no issued command may touch their bytes.
class PolicyContext {
 public:
  virtual ~PolicyContext() = default;

  // Starts a copy out of the device; the device copy stays. The copy goes to `pool`, or without one
  // to the fastest pool that has room. Returns true also if a copy outside exists already. Returns
  // false if the storage is not on the device, or if the pool is full or does not exist.
  bool Offload(TensorId tensor, std::optional<PoolId> pool = std::nullopt) {
    return Do({Verb::kOffload, tensor, pool});
  }

  // Gives the device block back at once. The block's next owner waits, on the device, until the
  // copy has landed and every reader is done. Returns false if the storage is not on the device or
  // has no copy outside; a copy in flight is enough.
  bool Release(TensorId tensor) { return Do({Verb::kRelease, tensor}); }

  // Takes a device block and starts the copy from outside. Returns false if the storage is not
  // `kOutside` or no block is free; `OnAllocFailure` is not called.
  bool Prefetch(TensorId tensor) { return Do({Verb::kPrefetch, tensor}); }

  // Drops the storage, on the device and outside; the runtime recomputes it at its next use.
  // Returns false if the storage has no next use or cannot be recomputed then: an op that writes it
  // is not recomputable, or an input of such an op will be gone or overwritten.
  bool Evict(TensorId tensor) { return Do({Verb::kEvict, tensor}); }

  // Carries out one of the verbs above. Throws `PolicyError` for others.
  virtual bool Do(const VerbCall& call) = 0;

  // Makes the compute stream wait, before the next op, for every copy issued so far.
  virtual void Fence() = 0;

  // Takes one block for the whole run, which the listed storages share. The storages must not be
  // live at the same time. The block is as large as the largest storage, and at least `at_least`.
  // Returns false if one of the storages has a block already. If no block is free, the run ends as
  // out of memory. Throws `PolicyError` outside `Plan`.
  virtual bool Reserve(std::span<const TensorId> tensors, Bytes at_least = Bytes(0)) = 0;

  // Takes one workspace for the whole run, which every kernel uses that fits in it. Returns false
  // if there is one already. Throws `PolicyError` outside `Plan`.
  virtual bool ReserveWorkspace(Bytes size) = 0;

  // Takes a workspace for the whole run that only the kernels of `op` use. Returns false if the op
  // has one already. Throws `PolicyError` outside `Plan`.
  virtual bool ReserveWorkspaceFor(OpId op, Bytes size) = 0;

  virtual Residency Where(TensorId tensor) const = 0;
  // Returns true if the storage must stay where it is, because an op that uses it is being prepared
  // or a recomputation needs it. All verbs on it return false.
  virtual bool Pinned(TensorId tensor) const = 0;
  // Returns the next op of the trace that uses the storage. The op being prepared counts; the op
  // just issued and ops that run again do not. Returns nullopt after the last use.
  virtual std::optional<OpId> NextUse(TensorId tensor) const = 0;
  virtual MemoryStats Stats() const = 0;

  virtual const Trace& trace() const = 0;
  // Says which ops use and write which storage.
  virtual const Liveness& liveness() const = 0;
  virtual const Device& device() const = 0;
  virtual const CostModel& cost() const = 0;
  // Returns `cost().Kernels(op, slot, op.batch)`. The runtime looks it up once per run.
  virtual std::span<const Kernel> kernels(OpId op, size_t slot) const = 0;
  // While an op runs again: the op of the trace whose input is being recomputed. Otherwise nullopt.
  virtual std::optional<OpId> recomputing() const = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Called first. Decides how much of `device.memory` the run uses and which trace it runs. This is
  // the place for trial runs, and for splitting or reordering ops and tensors. `plan` is the plan
  // of an earlier run (`Report::plan`) of an equal policy with the same trace, device and memory,
  // or empty; a policy that searches can follow it instead of searching again.
  virtual Preparation Prepare(const Trace& /*trace*/, const Device& device,
                              const CostModel& /*cost*/, const TrialRun& /*trial*/,
                              const std::string& /*plan*/) {
    return {device.memory};
  }

  // Called before anything is placed, for each storage that is a parameter, optimizer state or an
  // input. If it returns true, the storage starts in the fastest pool outside that has room, and
  // lives there between the ops that use it. The runtime fetches the storage if nobody has
  // prefetched it, copies it out if an op wrote it, and gives its device block back after an op
  // unless the next op uses it.
  virtual bool LivesOutside(const Trace&, TensorId) { return false; }

  // Called once, when parameters and optimizer state are where they start and nothing else is
  // placed.
  virtual void Plan(PolicyContext&) {}

  virtual void BeforeOp(PolicyContext&, OpId) {}
  virtual KernelPlan ChooseKernels(PolicyContext&, OpId) { return {}; }
  virtual void BeforeLaunch(PolicyContext&, OpId) {}
  virtual void AfterOp(PolicyContext&, OpId) {}

  // Returns the end of the arena at which the tensor's block should lie.
  virtual Hint PlacementHint(const PolicyContext&, TensorId) { return Hint::kLow; }

  // Called when no block of this many bytes is free. Returns true if the policy has made room; the
  // request is then tried again. It is a `PolicyError` to return true without having released or
  // evicted anything in the call. Returns false if the policy can make no room. The run then ends
  // as out of memory, unless placing all operands of the op anew succeeds.
  virtual bool OnAllocFailure(PolicyContext&, Bytes) { return false; }

  // Called after the last iteration. Returns the plan for `Report::plan` if the policy made its
  // decisions while it ran; empty keeps the plan of `Preparation`.
  virtual std::string ExportPlan() const { return {}; }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_POLICY_H_
