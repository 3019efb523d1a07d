// Reads the traces that PyTorch's profiler writes (Kineto, Chrome's JSON format).
//
// The reader keeps the parts of a training step: operators, kernels and copies, the calls that
// launched them, and the allocator's memory events. Times are in nanoseconds since the trace began.
// The file is read in pieces, so memory grows with the kept data, not with the stack frames and
// arrows that fill most of such files.

#ifndef SPILLWAY_TRACES_IMPORT_KINETO_H_
#define SPILLWAY_TRACES_IMPORT_KINETO_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "traces/base/text_stream.h"

namespace spillway::traces {

struct KinetoTrace {
  struct Operator {
    std::string name;
    // "Record function id", the operator's id in execution traces; 0: no execution trace was
    // recorded; -1: not written.
    int64_t record = -1;
    int64_t external_id = 0;  // the operator's id in activities
    int64_t thread = 0;
    int64_t begin = 0, end = 0;
  };
  // A kernel, copy or memset on a GPU.
  struct Activity {
    int64_t external_id = 0;  // the operator or annotation that launched it; 0: none
    int64_t correlation = 0;  // names the launch
    int64_t device = 0, stream = 0;
    int64_t begin = 0, end = 0;
  };
  struct Launch {
    int64_t correlation = 0;
    int64_t end = 0;
  };
  // A block was allocated; if `bytes` is negative, it was released.
  struct Memory {
    int64_t order = 0;  // "Ev Idx"
    int64_t time = 0, thread = 0;
    int64_t device = 0;  // the GPU's number; -1: the host
    uint64_t address = 0;
    int64_t bytes = 0;                    // as the allocator rounded it
    int64_t allocated = 0, reserved = 0;  // totals after this event
  };

  std::string device;                // the name of the first GPU; empty: no GPU
  std::vector<Operator> operators;   // by begin, outer operators before inner ones
  std::vector<Activity> activities;  // by begin
  std::vector<Launch> launches;      // by correlation
  std::vector<Memory> memory;        // by time
  // The names of devices with memory events other than the host and GPUs: "XPU (12)".
  std::set<std::string> unknown_devices;
  int64_t begin = 0, end = 0;  // the time of all operators and activities
  int64_t broken = 0;          // number of events that are not valid JSON
};

// Throws `InputError` if the stream is not such a trace, or has no operators or those of several
// processes. Numbers and times may be strings.
KinetoTrace ReadKineto(TextStream& stream);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_KINETO_H_
