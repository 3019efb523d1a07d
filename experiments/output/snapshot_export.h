// Writes a simulated run as a PyTorch memory snapshot, for the viewer at pytorch.org/memory_viz and
// for other programs that read snapshots.
//
// The stack frames of a block name its tensor (the inner frame) and the op at which it was placed
// (the outer frame). The line of both is the step of the op. A segment is a range of addresses of
// which every byte was in a block at some time.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_

#include <string>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns a pickle (protocol 4) with the keys segments, device_traces and external_annotations of
// `torch.cuda.memory._dump_snapshot`. It has no allocator_settings, because these are settings of
// PyTorch's allocator. Blocks held from before the iteration are allocated at its beginning.
// REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
std::string FormatSnapshot(const Trace& trace, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_SNAPSHOT_EXPORT_H_
