// The parts that a run is put together from, and its options.

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

namespace spillway {

struct RuntimeOptions {
  // Iterations stop when two in a row agree in decisions, placements and times, or at this number.
  int max_iterations = 8;
  // If positive: exactly this many, steady or not.
  int iterations = 0;
  // Copy the inputs to the device in each iteration and charge for it; otherwise they arrive
  // before.
  bool charge_input = false;
};

// The parts of a run. All of them outlive the runtime and serve no other run meanwhile.
struct RuntimeParts {
  const Trace* trace = nullptr;    // validated
  const Device* device = nullptr;  // its memory is the budget of the run
  const CostModel* cost = nullptr;
  Allocator* arena = nullptr;
  std::array<Allocator*, kMaxPools> pools{};  // outside, by number; nullptr where there is none
  Backend* backend = nullptr;
  Policy* policy = nullptr;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_PARTS_H_
