// Writes a simulated run as a Chakra execution trace (mlcommons.org/chakra, schema 0.0.4), which
// ASTRA-sim and other simulators of clusters read, one file for each rank.
//
// Each command is a node, in the order in which the runtime issued it: a kernel, a collective, or a
// copy, from the host (MEM_LOAD_NODE) or to it (MEM_STORE_NODE). A node depends on the node before
// it on its stream (a control dependency), and on the nodes that its command waited for (data
// dependencies). The host's own time is not part of the file.
//
//   duration_micros  the time by the cost model; the parts of a microsecond go to the next node of
//                    the stream
//   num_ops          floating-point operations of a kernel
//   tensor_size      bytes that a kernel reads and writes, or that a copy moves
//   comm_type        the kind of a collective, by Chakra's numbers
//   comm_size        bytes of its largest operand
//   pg_name          the number of its group, from 1 in the order of first use; groups are equal
//                    if their ranks have equal numbers and distances

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_CHAKRA_EXPORT_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_CHAKRA_EXPORT_H_

#include <string>

#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the file. Throws `InputError` that names the op if it sends to another process or
// receives from it, because traces do not say which one. REQUIRES: the logs are complete
// (`report.fits()`) and belong to `trace`.
std::string FormatChakra(const Trace& trace, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_CHAKRA_EXPORT_H_
