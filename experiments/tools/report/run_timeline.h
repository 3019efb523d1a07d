// Describes one iteration for a report: the events of each stream over time, the reasons why
// kernels waited, and the tensor in each block of device memory.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_

#include <string>

#include "experiments/run/prepared.h"

namespace spillway::lab {

// Returns a JSON object on one line. Lists are arrays of little-endian numbers in base64; an event
// takes about 18 bytes of text. Times are in units of 2^-32 of `iteration_ms`:
//   iteration_ms  capacity (bytes; null if unlimited)  streams (texts)  causes (texts)
//   kinds: texts, the kinds of tensors and then the kind of blocks that hold no tensor
//   phases: an object with name and start for each change of the phase of the kernels, by start
//   names: a text with one line for each name. The first character encodes the number of leading
//          characters that the name shares with the previous name, as the distance of the character
//          from "0". The other characters of the name follow.
//   events: count  start  length  name (index)  what: the stream plus 16 times the kind (0 kernel,
//           1 recomputed kernel, 2 offload, 3 prefetch, 4 fetch, 5 input)
//   stalls: count  event (index, ascending)  length  cause (index)  awaited (an event; 2^32 - 1 for
//           the host)
//   blocks: omitted (how many were left out, smallest first, above a hundred thousand)  count start
//           length  offset  size (KiB)  name (index)  kind (index)  nested (1 within a reserved
//           block)
// REQUIRES: the run fits.
std::string TimelineJson(const Outcome& outcome, Bytes memory);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_
