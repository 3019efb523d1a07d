// The trace of a recorded step under torch.compile, with one cut of its graphs.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_COMPILED_STEP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_COMPILED_STEP_H_

#include <optional>

#include "sim/core/cost_model.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the step with one op in place of forward and backward, which takes the memory of the cut,
// and an estimated time: as long for each of its flops as the recorded products, and for each of
// its bytes as the other recorded ops. What of the recorded flops no graph has, runs as recorded.
// Returns nullopt if an op of forward or backward follows one of the update. REQUIRES: the trace
// has a recording of one process, and the cut is one of `trace.compiled`; `cost` has times for its
// ops.
std::optional<Trace> Compiled(const Trace& trace, const CompiledCut& cut, const CostModel& cost);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_COMPILED_STEP_H_
