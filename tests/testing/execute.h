// One call that runs a policy on real bytes.

#ifndef SPILLWAY_TESTS_TESTING_EXECUTE_H_
#define SPILLWAY_TESTS_TESTING_EXECUTE_H_

#include <cstdint>
#include <optional>

#include "experiments/run/execute.h"
#include "tests/testing/runs.h"

namespace spillway::testing {

// Runs `iterations` iterations on the CPU with seed 7. `drain_seed` draws the order of execution;
// without it, commands execute in the order of issue.
inline Outcome RunOnCpu(Draft run, Policy& policy, int iterations,
                        std::optional<uint64_t> drain_seed = std::nullopt) {
  BackendFactories backends;
  backends.Add("cpu", CpuFactory({7, drain_seed}));
  run.backend = "cpu";
  run.options.iterations = iterations;
  return RunPolicy(run, policy, backends);
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_EXECUTE_H_
