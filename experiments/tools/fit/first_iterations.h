// The allocation requests that PyTorch makes in the first iterations of a recorded program.
//
// The optimizer allocates its state at its first step, from segments that the forward and backward
// pass have left cached. The next iteration needs new segments in place of these. A program
// therefore reserves more memory than if the optimizer state had existed from the beginning.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_

#include "sim/packing/allocation_log.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the requests before the first iteration, if the recording knows them, and those of the
// first `iterations` iterations: each storage, allocated until the recorded program freed it, and
// the workspace of each op. REQUIRES: the trace has a recording.
AllocationLog RequestsOfFirst(const Trace& trace, int iterations);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_
