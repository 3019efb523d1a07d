// What has to be found out by simulation before a run: the plan of the allocator `planned`, what
// `auto` is to be, which storages compression keeps, and how much memory a backend has to take.

#ifndef SPILLWAY_EXPERIMENTS_RUN_RESOLVE_H_
#define SPILLWAY_EXPERIMENTS_RUN_RESOLVE_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "experiments/run/assembler.h"
#include "experiments/run/setup.h"
#include "sim/alloc/planned.h"
#include "sim/core/allocator.h"
#include "sim/core/policy.h"

namespace spillway {

// Makes a policy object for one run; called once per run.
using PolicyMaker = std::function<std::unique_ptr<Policy>()>;

// Offsets for the blocks that the policy asks for when only the sum of what is live has to fit in
// the setup's memory. They may lie higher than that. REQUIRES: the setup has no plan.
AllocationPlan PlanFor(const Setup& setup, const PolicyMaker& make);

// What to run, and with which of the policies.
struct Resolved {
  Setup setup;
  size_t policy = 0;
};

// Finds out by simulation what the allocator has to know; all other setups come back as they are.
// `planned`: the policy runs once, and the blocks that it asks for get offsets. If they do not fit
// though their sum does, the policy runs again with as much less memory, and a little more each
// time, at most four times in all. `auto`: every allocator is tried with every policy given, and
// the run that needs the least memory is taken, or the fastest with `auto:by=time`; the other
// decides between equals, then the order of the lists. If nothing fits it is best-fit with the
// first policy. Of what ran and fits the setup has the `policy_plan`. Throws as `Simulate`.
// REQUIRES: there is a policy.
Resolved ResolveAllocator(const Setup& setup, std::span<const PolicyMaker> policies);
Setup ResolveAllocator(const Setup& setup, const PolicyMaker& policy);

// Chooses by simulation of the setup with this policy: of the feature maps that leave the device
// those that save enough; with `only_hidden` as many, the sparsest first, as leave the iteration as
// short as it is without. Setups without a plan, or with one that has chosen, come back as they
// are; so do those for execution without densities, unless `only_hidden`: every feature map is
// compressed, which measures them. Throws `UsageError` if densities are needed and not known,
// `InputError` if they name tensors that the trace does not have.
Setup ResolveCompression(const Setup& setup, const PolicyMaker& make_policy);

// What a run touches that is predicted so, for a backend that needs it. REQUIRES: it fits.
Footprint FootprintOf(const Setup& setup, const Outcome& predicted);

// The allocator, then compression.
Resolved Resolve(const Setup& setup, std::span<const PolicyMaker> policies);

// Resolves the setup and runs it. A backend that needs a footprint does not run what is predicted
// not to fit: the prediction is the outcome.
Outcome Play(const Setup& setup, std::span<const PolicyMaker> policies,
             const BackendFactories& backends = {});

// The makers of what a specification names, to be resolved with the setup: one, or with the
// allocator `auto` one for each of `OrdersOf`.
std::vector<PolicyMaker> MakersOf(const Setup& setup, const std::string& policy);

// Returns the specifications that `auto` tries in place of a policy's: see
// `PolicyLibrary::Candidates`.
std::vector<std::string> OrdersOf(const std::string& policy);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_RESOLVE_H_
