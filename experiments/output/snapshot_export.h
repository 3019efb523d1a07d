// A simulated run as a PyTorch memory snapshot, for the viewer at pytorch.org/memory_viz and for
// whatever else reads them.
//
// Stack frames say what a block is for: the innermost is the tensor, the outer one the op at which
// it was placed, with its step as the line. A segment is a range of addresses without a hole that
// no block ever used.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_

#include <string>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// The pickle (protocol 4): keys segments, device_traces and external_annotations, as
// `torch.cuda.memory._dump_snapshot` writes them. It has no allocator_settings, for they are those
// of PyTorch's allocator. What is held from before the iteration is allocated at its beginning.
// REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
std::string FormatSnapshot(const Trace& trace, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_
