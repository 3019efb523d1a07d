// A policy decides what lives in device memory and when it moves. This is the interface to write
// one.
//
// A policy sees the trace, the device, the cost model and its own past decisions. It sees no clock
// and no completions, and cannot tell whether a simulator or a GPU executes it: the same object
// gives the same decisions on both. Every hook has a default that does nothing, so a policy states
// only what is special about it. One object serves one run; hooks are called from one thread.
//
// For each op the runtime calls, in this order:
//
//   BeforeOp        then fetches or rebuilds the op's inputs, allocates its outputs and scratch
//   ChooseKernels   then allocates the workspace
//   BeforeLaunch    then issues the op, frees the workspace and whatever has no further use
//   AfterOp         the op is issued; it has not necessarily run
//
// Ops that run again to rebuild an evicted tensor get the same calls; `PolicyContext::recomputing`
// tells them apart.

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
#include "traces/base/units.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

struct Report;
class Policy;

// How a trial run is to be made.
struct TrialOptions {
  // As many iterations; 0: until two in a row agree, which takes at least two. One alone stands for
  // those that repeat it, as they do where a policy starts each iteration afresh: what the
  // allocator takes from the driver as it grows costs nothing then.
  int iterations = 0;
  // With this share of the bandwidth between device and host, in both directions.
  double link = 1;
  // Of the trace with its ops in another order, as a `Rewrite` would have them; nullptr: as it is.
  std::shared_ptr<const Trace> reordered = nullptr;
};

// A predicted run of another policy in so much device memory, with the run's cost model, allocator
// and trace, as it is before `Rewrite`. Deterministic, and safe to call from several threads.
class TrialRun {
 public:
  using Function = std::function<Report(Policy&, Bytes memory, const TrialOptions&)>;

  TrialRun(Function run) : run_(std::move(run)) {}  // NOLINT(google-explicit-constructor)

  Report operator()(Policy& policy, Bytes memory, const TrialOptions& options = {}) const;

 private:
  Function run_;
};

// Where the current contents of a tensor's storage are. A storage that is on the device may have a
// copy outside too, in the host's memory or another pool.
enum class Residency : uint8_t {
  kNone,     // not written yet in this iteration, or no longer needed
  kDevice,   // on the device
  kBoth,     // on the device, with a copy outside that has landed or is in flight
  kOutside,  // released: outside only
  kEvicted,  // dropped; the runtime recomputes it at its next use
};

// How the parts of an op's slots are run. Empty means the fastest kernel of each slot on the whole
// batch.
using KernelPlan = std::vector<KernelRun>;

// What a policy may do and know. Tensor arguments stand for their whole storage (the root of
// `alias_of`). A verb returns false if it is not possible now, and then nothing has changed.
//
//   when                           verbs say false on
//   from `BeforeOp` to the issue   every storage that the op uses
//   `OnAllocFailure` in between    the same, but for inputs that are there already: they can make
//                                  room and are brought back in their turn; one that the op writes,
//                                  too, only until outputs are placed. Where free blocks lie apart,
//                                  the hook is asked once for as much as the op needs, with all
//                                  inputs free to go, and everything is placed anew
//   `OnAllocFailure` before the    everything but what has a copy outside, which can be released:
//     first op, for parameters     no copy can be started yet, for what arrives is written at once,
//     and inputs                   and nothing that was issued may touch
//                                  its bytes
class PolicyContext {
 public:
  virtual ~PolicyContext() = default;

  // Starts the copy out of the device, to the pool named or else to the fastest with room; the
  // device copy stays. True if there is a copy outside already. False if the storage is not on the
  // device, or the pool is full or does not exist.
  virtual bool Offload(TensorId tensor, std::optional<PoolId> pool = std::nullopt) = 0;

  // Gives the device block back at once; its next owner waits, on the device, until the copy has
  // landed and every reader is done. Needs a copy outside, landed or in flight.
  virtual bool Release(TensorId tensor) = 0;

  // Takes a device block and starts the copy from outside. False if the storage is not outside only
  // or no block is free; `OnAllocFailure` is not called.
  virtual bool Prefetch(TensorId tensor) = 0;

  // Drops the storage; the runtime recomputes it at its next use. False if it cannot be rebuilt
  // then: an op that writes it is not recomputable, or an input of one will be gone or overwritten.
  virtual bool Evict(TensorId tensor) = 0;

  // Makes the compute stream wait, before the next op, for every copy issued so far.
  virtual void Fence() = 0;

  // Only in `Plan`. One block for the whole run that the listed storages share; they must not be
  // live at the same time. The block is as large as the largest of them and at least `at_least`.
  // False if one of them has a block already; if no block is free, the run ends as for any
  // allocation that fails.
  virtual bool Reserve(std::span<const TensorId> tensors, Bytes at_least = Bytes(0)) = 0;

  // Only in `Plan`. One workspace for the whole run, used by every kernel that fits in it.
  virtual bool ReserveWorkspace(Bytes size) = 0;

  // Likewise one that the kernels of this op alone use. False if it has one already.
  virtual bool ReserveWorkspaceFor(OpId op, Bytes size) = 0;

  // A predicted trial run of another policy with the same memory and cost model, from the trace as
  // it was before `Rewrite`. Deterministic, and safe to call from several threads.
  virtual Report WhatIf(Policy& policy, const TrialOptions& options = {}) const = 0;

  virtual Residency Where(TensorId tensor) const = 0;
  // True if an op that is being prepared or rebuilt for needs the storage where it is: verbs on it
  // say false.
  virtual bool Pinned(TensorId tensor) const = 0;
  // The next op of the trace that uses the storage: the one being prepared counts, the one just
  // issued does not. nullopt after its last use. Ops that are run again do not count.
  virtual std::optional<OpId> NextUse(TensorId tensor) const = 0;
  virtual MemoryStats Stats() const = 0;

  virtual const Trace& trace() const = 0;
  // Which ops use and write which storage.
  virtual const Liveness& liveness() const = 0;
  virtual const Device& device() const = 0;
  virtual const CostModel& cost() const = 0;
  // `cost().Kernels(op, slot, op.batch)`, looked up once per run.
  virtual std::span<const Kernel> kernels(OpId op, size_t slot) const = 0;
  // While an op is run again: the op of the trace whose input is being rebuilt.
  virtual std::optional<OpId> recomputing() const = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Called before all else, if at all: what `ExportPlan` gave after a run with the same trace,
  // device and memory of a policy that was made alike. One that searches has nothing to search for
  // then.
  virtual void ImportPlan(const std::string&) {}

  // Called first: how much of the run's memory, `device.memory`, to use, more than 0. The run is
  // then as on a device that has no more. More memory places blocks elsewhere, which may make other
  // copies wait, so that less may be faster.
  virtual Bytes LimitMemory(const Trace&, const Device& device, const TrialRun&) {
    return device.memory;
  }

  // May split ops and tensors, for a device with the run's memory. nullopt leaves the trace alone.
  virtual std::optional<Trace> Rewrite(const Trace&, const Device&, const CostModel&) {
    return std::nullopt;
  }

  // Called for each storage of the trace that is a parameter, optimizer state or an input, before
  // anything is placed. True: it starts, and lives between the ops that use it, in the fastest pool
  // outside that has room. The runtime fetches it where nobody has prefetched it, writes it back if
  // an op wrote it, and gives its device block back after an op unless the next one uses it, too.
  virtual bool LivesOutside(const Trace&, TensorId) { return false; }

  // Called once, with parameters and optimizer state where they start and nothing else.
  virtual void Plan(PolicyContext&) {}

  virtual void BeforeOp(PolicyContext&, OpId) {}
  virtual KernelPlan ChooseKernels(PolicyContext&, OpId) { return {}; }
  virtual void BeforeLaunch(PolicyContext&, OpId) {}
  virtual void AfterOp(PolicyContext&, OpId) {}

  // At which end of the arena the tensor's block should go.
  virtual Hint PlacementHint(const PolicyContext&, TensorId) { return Hint::kLow; }

  // No block of `size` bytes is free. Make room and return true to have the request tried again;
  // true without a release or an eviction since the last call is a `PolicyError`. False ends the
  // run: the workload does not fit under this policy.
  virtual bool OnAllocFailure(PolicyContext&, Bytes) { return false; }

  // Called after the last iteration: what it has decided, as a text from which another run can be
  // made to decide the same (`Report::plan`, `ImportPlan`). Empty if there is no such text.
  virtual std::string ExportPlan() const { return {}; }
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_POLICY_H_
