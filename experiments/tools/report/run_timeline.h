// One iteration as a report draws it: what each stream did and when, why kernels waited, and which
// tensor held which block of device memory.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_

#include <string>

#include "experiments/run/setup.h"

namespace spillway {

// A JSON object on one line. Lists are arrays of little-endian numbers in base64, about 18 bytes of
// text for an event. Times are in 2^-32 of `iteration_ms`:
//   iteration_ms  capacity (bytes; null if unlimited)  streams (texts)  causes (texts)
//   names: a text, a line for each: a character that is so far behind "0" as the name shares
//          characters with the one before, then the others
//   events: count  start  length  name (index)  what: the stream, and 16 times the kind (0 kernel,
//           1 run again, 2 offload, 3 prefetch, 4 fetch, 5 input)
//   stalls: count  event (index, ascending)  length  cause (index)  awaited (an event; 2^32 - 1 for
//           the host)
//   blocks: omitted (the smallest, where there are more than a hundred thousand)  count  start
//           length  offset  size (KiB)  name (index)  nested (of a reserved block)
// REQUIRES: the run fits.
std::string TimelineJson(const Outcome& outcome, Bytes memory);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_RUN_TIMELINE_H_
