// The trace of a recorded process of a sharded step among another number of processes.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_OTHER_WORLD_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_OTHER_WORLD_H_

#include <cstdint>

#include "traces/trace.h"

namespace spillway::lab {

// Returns the step of the same process among `world` of them. The outermost dimension of the mesh
// grows or shrinks: the groups that reach from the first to the last process. The others, such as
// those of tensor parallelism inside a host, stay as they are, and so does the batch of a process.
// What a growing group shards is as many times smaller: what it gathers, the results of its
// reduce-scatters, and what the step computes of them element by element, such as parameters,
// gradients and optimizer state of FSDP. The first dimension of a shard is rounded up. Times of
// operators on shards change with their traffic. The new recording has no measured step and peaks.
//
// Throws `UsageError` if the step has no collectives; if `world` is not a multiple of the other
// dimensions of the mesh; if processes send messages to each other, or own parameters that they
// broadcast; or if a growing group splits the computation itself, as in tensor parallelism.
// REQUIRES: the trace has a recording, and `world` is positive.
Trace WithWorld(const Trace& trace, int64_t world);

// Returns the step whose parameters are shared out among `shards` processes, inner dimensions of
// the mesh included, with as many fewer replicas of them in the same world; else as above.
//
// Throws `UsageError` in the cases above, if the step has no replicas of shards of parameters, or
// if `shards` is not a multiple of those that it has, or does not divide the world. REQUIRES: as
// above.
Trace WithShards(const Trace& trace, int64_t shards);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_OTHER_WORLD_H_
