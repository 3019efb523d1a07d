// The checks of a trace for its reader, which has compared the names as it read them.

#ifndef SPILLWAY_TRACES_VALIDATE_H_
#define SPILLWAY_TRACES_VALIDATE_H_

namespace spillway {

struct Trace;

// Throws as `Trace::Validate` does. REQUIRES: no two layers have the same
// name, nor two tensors, nor two ops.
void ValidateAllButNames(const Trace& trace);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_VALIDATE_H_
