// Reads the traces that PyTorch's profiler writes (Kineto, Chrome's JSON format).
//
// Kept is what a training step is made of: operators, kernels and copies, the calls that launched
// them, and what the allocator was asked for. Times are in nanoseconds since the trace began. The
// file is read in pieces: memory grows with what is kept, not with the stack frames and arrows
// that fill most of such files.

#ifndef SPILLWAY_TRACES_IMPORT_KINETO_H_
#define SPILLWAY_TRACES_IMPORT_KINETO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "traces/base/text_stream.h"

namespace spillway {

struct KinetoTrace {
  struct Operator {
    std::string name;
    int64_t record = 0;       // "Record function id", by which execution traces know it
    int64_t external_id = 0;  // by which activities know it
    int64_t thread = 0;
    int64_t begin = 0, end = 0;
  };
  // A kernel, copy or memset on a GPU.
  struct Activity {
    int64_t external_id = 0;  // of the operator or annotation that launched it; 0: none
    int64_t correlation = 0;  // of the launch
    int64_t device = 0, stream = 0;
    int64_t begin = 0, end = 0;
  };
  struct Launch {
    int64_t correlation = 0;
    int64_t end = 0;
  };
  // A block was given out, or with less than 0 bytes given back.
  struct Memory {
    int64_t order = 0;  // "Ev Idx"
    int64_t time = 0, thread = 0;
    int64_t device = 0;  // a GPU's number; -1: of the host
    uint64_t address = 0;
    int64_t bytes = 0;                    // as the allocator rounded it
    int64_t allocated = 0, reserved = 0;  // with it
  };

  std::string device;                // the name of the first GPU; empty: there is none
  std::vector<Operator> operators;   // by begin, the outer before the inner
  std::vector<Activity> activities;  // by begin
  std::vector<Launch> launches;      // by correlation
  std::vector<Memory> memory;        // by time
  int64_t begin = 0, end = 0;        // of the operators and activities
  int64_t broken = 0;                // events that were no JSON
};

// Throws `InputError` if this is no such file, or has no operators.
KinetoTrace ReadKineto(TextStream& stream);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_KINETO_H_
