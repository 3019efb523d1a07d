// Puts a run together from its setup, a policy and a backend: nothing else does.
//
// Backends are made by name. The simulator is always there; a program adds those that it links, so
// that the library links no hardware.

#ifndef SPILLWAY_EXPERIMENTS_RUN_ASSEMBLER_H_
#define SPILLWAY_EXPERIMENTS_RUN_ASSEMBLER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "experiments/run/setup.h"
#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/executor.h"
#include "sim/core/policy.h"

namespace spillway {

// What a backend is made for. All of it outlives the backend.
struct BackendRequest {
  const Setup& setup;  // the memory of its device is that of the run
  const Trace& trace;  // that runs
  Backing backing;     // of the allocator that serves it
  const std::optional<HostCompression>& compression;
};

// A backend for one run.
struct RunBackend {
  std::unique_ptr<Backend> backend;
  Executor* executor = nullptr;  // `backend`, if it executes
  bool digest = true;            // whether the weights of an execution are to be digested
  // Adds to the summary of a run that has come to its end what this backend alone knows; may be
  // empty.
  std::function<void(CompressionSummary&)> complete = nullptr;
};

struct BackendFactory {
  std::function<RunBackend(const BackendRequest&)> make;
  bool needs_footprint = false;  // takes its memory before the run
};

class BackendFactories {
 public:
  // The simulator alone.
  BackendFactories();

  // Takes the place of one with that name.
  void Add(const std::string& name, BackendFactory factory);

  // Throws `UsageError` with a suggestion and the valid names for an unknown name.
  const BackendFactory& Find(const std::string& name) const;

 private:
  std::map<std::string, BackendFactory> factories_;
};

// Makes what is used instead of the setup's own arena, and outlives the run.
using ArenaMaker = std::function<Allocator&(Bytes capacity)>;

// Runs a policy on the backend that the setup names, in as much of its memory as the policy wants.
// A trial run of `Policy::Prepare` runs another policy on the simulator, from the setup's trace and
// without plan and compression. `planned`, `auto` and compression are to be resolved before
// (resolve.h). Throws `PolicyError` if the policy breaks its contract, and what the
// backend throws.
Outcome RunPolicy(const Setup& setup, Policy& policy, const BackendFactories& backends = {},
                  const ArenaMaker& arena = {});

// The prediction: the run on the simulator to its steady state, whatever backend and number of
// iterations the setup names.
Outcome Simulate(const Setup& setup, Policy& policy, const ArenaMaker& arena = {});

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_ASSEMBLER_H_
