// Turns a case into a run with nothing left to decide.
//
// Trial runs make some choices: where blocks go, which storages compression keeps, and how much
// memory a backend has to take. Each choice is made by a pass from draft to draft.

#ifndef SPILLWAY_EXPERIMENTS_RUN_PREPARE_H_
#define SPILLWAY_EXPERIMENTS_RUN_PREPARE_H_

#include <optional>

#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "experiments/run/prepared.h"
#include "experiments/run/run.h"
#include "sim/alloc/planned.h"

namespace spillway::lab {

// A function that makes one choice that the case leaves open, by trial runs. Throws the errors of
// `Run`.
using Pass = Draft (*)(const Case& asked, Draft run, const BackendFactories& backends);

// Decides where the blocks of the run go; the allocator of the case says how:
// - `planned`: The policy runs once, and the blocks that it requests get offsets. If the offsets
//   need more than the run's memory, the policy runs again with less memory: less by the excess and
//   by a margin that grows with each attempt. There are at most six attempts;
//   then blocks are placed by best fit, as they come.
// - `auto`: Every allocator is tried with every candidate of the policy. The run that needs the
//   least memory is taken, or with `auto:by=time` the fastest run. Between equal runs the other
//   number decides, then the order of the lists. If no run fits, the result has best-fit and the
//   first candidate.
// - Any other allocator: the run is returned unchanged.
// If the run that was taken fits, the result has its plan as `policy_plan`.
Draft DecidePlacement(const Case& asked, Draft run, const BackendFactories& backends);

// Chooses the feature maps that the host keeps compressed. Candidates are the feature maps that
// leave the device and save enough. "all" takes every candidate. "hidden" goes through the
// candidates from the sparsest on, and takes each with which the iteration stays as short as
// without compression. A run that executes with unknown densities compresses every feature map,
// which measures the densities, unless the case says "hidden". Throws `UsageError` if densities are
// needed and unknown, and `InputError` if they name tensors that the trace does not have.
Draft DecideCompression(const Case& asked, Draft run, const BackendFactories& backends);

// Predicts how much memory the run touches, if its backend takes memory before the run. If the run
// does not fit by that prediction, returns the prediction, so that nothing is executed.
Draft DecideFootprint(const Case& asked, Draft run, const BackendFactories& backends);

// Applies all passes. `run` is the result of `Inputs::DraftOf`, to which the caller may have made
// changes.
Prepared Decide(const Case& asked, Draft run, const BackendFactories& backends = {});

// Returns the run of the case, with all choices made.
Prepared Prepare(const Case& asked, const Inputs& inputs, const BackendFactories& backends = {});

// Simulates what the backend of the run will execute: the steady state, or as many iterations as
// the run has if no two of them are equal.
Outcome PredictExecution(const Draft& run);

// Runs the case, and verifies the report if the case asks for `check`. A `PolicyError` names the
// policy. A policy of a plugin runs in a process of its own (isolation.h); `inputs` are then loaded
// there again, and the process chooses the backend.
Outcome RunCase(const Case& asked, const Inputs& inputs, const BackendFactories& backends = {});

// Returns offsets for the blocks that the policy requests. In the recorded run only the sum of the
// live blocks has to fit in the run's memory, so the plan may be higher than that memory.
AllocationPlan PlanFor(const Draft& run, const AllocatorChoice::Planned& planned);

// Returns about the least memory in which the case fits, after it failed in its own: a memory in
// which it fits, while it does not in one that exceeds its own by 4 % less. Doubles the
// excess from `lacking` on, which is what the request that failed lacked, and then bisects it, with
// at most 46 runs, all simulated. Returns nullopt if it fits in none of these. Throws as `RunCase`.
std::optional<Bytes> FindNeededMemory(Case asked, const Inputs& inputs, Bytes lacking);

// Throws `PolicyError` if the independent checker finds violations in the report. The message
// begins with `whose`: "policy 'vdnn-all'".
void Verify(const std::string& whose, const Outcome& outcome);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_PREPARE_H_
