// Runs a policy object that the test keeps and inspects after the run.

#ifndef SPILLWAY_TESTS_TESTING_RUNS_H_
#define SPILLWAY_TESTS_TESTING_RUNS_H_

#include <memory>

#include "experiments/run/run.h"
#include "sim/core/policy.h"

namespace spillway::testing {

// Returns a choice whose objects all forward to `policy`. REQUIRES: `policy` outlives them.
PolicyChoice Borrowed(Policy& policy);

// Runs `run` with `policy` in place of its own policy.
Outcome RunPolicy(Draft run, Policy& policy, const BackendFactories& backends = {});

// Runs `run` with `policy` on the simulator, to the steady state.
Outcome Simulate(const Draft& run, Policy& policy);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_RUNS_H_
