// What PyTorch asks of its allocator in the first iterations of a recorded program.
//
// The optimizer makes its state at its first step, when forward and backward have left their
// segments behind; what it takes of them, the next iteration lacks. So a program holds more memory
// than one whose state had been there from the beginning.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_

#include "sim/packing/allocation_log.h"
#include "traces/trace.h"

namespace spillway {

// The requests of so many iterations: storages, each until it was given back, and the workspaces of
// ops. REQUIRES: the trace has a recording.
AllocationLog RequestsOfFirst(const Trace& trace, int iterations);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_FIRST_ITERATIONS_H_
