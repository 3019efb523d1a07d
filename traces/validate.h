// Validates a trace that its reader has already checked for duplicate names.

#ifndef SPILLWAY_TRACES_VALIDATE_H_
#define SPILLWAY_TRACES_VALIDATE_H_

namespace spillway::traces {

struct Trace;

// Throws the errors of `Trace::Validate`, except for duplicate names. REQUIRES: no two layers, no
// two tensors and no two ops have the same name.
void ValidateAllButNames(const Trace& trace);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_VALIDATE_H_
