// The parts of a run, and its options.

#ifndef SPILLWAY_SIM_RUNTIME_PARTS_H_
#define SPILLWAY_SIM_RUNTIME_PARTS_H_

#include <array>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::sim {

struct RuntimeOptions {
  // The run ends when two iterations in a row agree in decisions, placements and times, or after
  // this many iterations.
  int max_iterations = 8;
  // If positive, exactly this many iterations are run, steady or not.
  int iterations = 0;
  // If true, the inputs are copied to the device in each iteration, and the time is charged; if
  // false, the inputs are there before the iteration.
  bool charge_input = false;
};

// The parts of a run. All parts outlive the runtime and serve no other run at the same time.
struct RuntimeParts {
  const Trace* trace = nullptr;    // validated
  const Device* device = nullptr;  // its memory is the budget of the run
  const CostModel* cost = nullptr;
  Allocator* arena = nullptr;
  std::array<Allocator*, kMaxPools> pools{};  // outside, by number; may be nullptr
  Backend* backend = nullptr;
  Policy* policy = nullptr;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_PARTS_H_
